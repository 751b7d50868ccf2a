#include "data/text_pairs.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "core/error.h"
#include "core/nearest_name.h"
#include "core/to_size.h"
#include "io/json_reader.h"
#include "io/utf8.h"

namespace ballast::data {
namespace {

constexpr std::size_t kPiece = 1 << 20;
constexpr std::string_view kQuality = "quality_score";
constexpr std::array<std::string_view, 3> kTargets = {"output", "target", "summary"};

const Advice kCorrectLine = {"correct or remove that line", "the others are read as they are"};

[[noreturn]] void refuse(const std::string& path, std::uint64_t line, const std::string& what,
                         const Advice& advice = kCorrectLine) {
  fail(ErrorCode::input, fmt::format("{}, line {}: {}", path, line, what), {advice});
}

JsonSource json_source(const RawRecord& record, const std::string& path) {
  return {.text = record.text,
          .path = fmt::format("{}, line {}", path, record.line),
          .rule = "as JSON"};
}

// Names of an object's members, those with texts first to last.
struct Members {
  std::vector<std::string> all, texts;
};
Members members_of(const RawRecord& record, const std::string& path) {
  Members m;
  JsonReader json(json_source(record, path));
  if (json.peek() != JsonReader::Kind::object) {
    const bool array = json.peek() == JsonReader::Kind::array;
    refuse(path, record.line,
           fmt::format("{} where an object was expected: one object on every line",
                       name_of(json.peek())),
           array ? Advice{fmt::format("jq -c '.[]' {} > lines.jsonl", path), "writes it that way"}
                 : kCorrectLine);
  }
  json.open_object();
  for (std::string_view key; json.next_key(key);) {
    m.all.emplace_back(key);
    if (json.peek() == JsonReader::Kind::string) m.texts.push_back(m.all.back());
    json.skip();
  }
  return m;
}

std::string column_named(const std::vector<std::string>& names, const std::string& wanted,
                         const char* what, const std::string& path) {
  if (std::ranges::find(names, wanted) != names.end()) return wanted;
  const std::vector<std::string_view> known(names.begin(), names.end());
  fail(ErrorCode::input, "{} has no column {} for the {}{}: it has {}", path, printable(wanted),
       what, suggestion(wanted, known), printable(joined(known), 400));
}

}  // namespace

RecordFormat record_format(std::string_view path) {
  std::string name(path.substr(path.size() - std::min<std::size_t>(4, path.size())));
  for (char& c : name) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
  if (name == ".csv") return RecordFormat::csv;
  return name == ".tsv" ? RecordFormat::tsv : RecordFormat::json_lines;
}

RecordReader RecordReader::open(const std::string& path) {
  RecordReader reader(DiskFile::open(path, DiskMode::buffered), record_format(path));
  reader.fill();
  if (reader.buffer_.starts_with("\xEF\xBB\xBF")) reader.at_ = 3;
  return reader;
}

bool RecordReader::fill() {
  if (offset_ == file_.size()) return false;
  buffer_.erase(0, at_);
  at_ = 0;
  const auto bytes = to_size(std::min<std::uint64_t>(kPiece, file_.size() - offset_));
  const std::size_t before = buffer_.size();
  buffer_.resize(before + bytes);
  const auto piece = std::as_writable_bytes(std::span(buffer_)).subspan(before);
  file_.read(offset_, piece);
  sum_.add(piece);
  offset_ += bytes;
  return true;
}

// A record ends with its line; of a CSV only where all quotes before are closed, which is where
// their number is even.
bool RecordReader::next(RawRecord& record) {
  const bool quotes = format_ != RecordFormat::json_lines;
  for (;;) {
    std::size_t from = 0;
    bool open = false;
    std::uint64_t lines = 0;
    std::size_t end = std::string::npos;
    do {
      for (; at_ + from < buffer_.size(); ++from) {
        const char c = buffer_[at_ + from];
        if (quotes && c == '"') open = !open;
        if (c != '\n') continue;
        ++lines;
        if (!open) break;
      }
      if (at_ + from < buffer_.size()) end = from;
      if (from > kMaxRecordBytes) {
        refuse(path(), line_,
               fmt::format("a record of more than {} MiB{}", kMaxRecordBytes >> 20,
                           open ? ": a quote in it is not closed" : ""));
      }
    } while (end == std::string::npos && fill());
    const bool last = end == std::string::npos;
    if (last && open) refuse(path(), line_, "a quote that is not closed");
    if (last) end = buffer_.size() - at_;
    record.text.assign(buffer_, at_, end);
    record.line = line_;
    at_ = last ? buffer_.size() : at_ + end + 1;
    line_ += lines;
    while (!record.text.empty() && record.text.back() == '\r') record.text.pop_back();
    const bool blank = record.text.find_first_not_of(quotes ? "" : " \t") == std::string::npos;
    if (!blank) return true;
    if (last) return false;
  }
}

std::vector<std::string> csv_fields(const RawRecord& record, char separator,
                                    const std::string& path) {
  const std::string& s = record.text;
  if (const auto bad = first_invalid_utf8(s)) {
    refuse(path, record.line, fmt::format("byte {} is not UTF-8", *bad + 1));
  }
  std::vector<std::string> fields;
  std::size_t at = 0;
  for (;;) {
    std::string& field = fields.emplace_back();
    if (at < s.size() && s[at] == '"') {
      for (++at;; ++at) {
        if (at >= s.size()) refuse(path, record.line, "a quote that is not closed");
        if (s[at] == '"' && at + 1 < s.size() && s[at + 1] == '"') {
          ++at;
        } else if (s[at] == '"') {
          break;
        }
        field += s[at];
      }
      if (++at < s.size() && s[at] != separator) {
        refuse(path, record.line,
               fmt::format("field {} continues after its closing quote", fields.size()));
      }
    } else {
      const std::size_t end = std::min(s.find(separator, at), s.size());
      field = s.substr(at, end - at);
      at = end;
      if (field.find('"') != std::string::npos) {
        refuse(path, record.line,
               fmt::format("field {} has a quote inside and none around it", fields.size()));
      }
    }
    if (at >= s.size()) return fields;
    ++at;  // the separator: another field follows
  }
}

PairColumns::PairColumns(const TextPairOptions& options, RecordFormat format,
                         const RawRecord& first, std::string path)
    : format_(format), path_(std::move(path)), prefix_(options.source_prefix) {
  const bool json = format_ == RecordFormat::json_lines;
  std::vector<std::string> names, texts;
  if (json) {
    Members m = members_of(first, path_);
    names = std::move(m.all), texts = std::move(m.texts);
  } else {
    names = csv_fields(first, format_ == RecordFormat::tsv ? '\t' : ',', path_);
    texts = names;
  }
  const auto has = [&](std::string_view name) {
    return std::ranges::find(names, name) != names.end();
  };
  const auto known = std::ranges::find_if(kTargets, has);
  const bool by_name = has("input") && known != kTargets.end();
  if (!by_name && texts.size() < 2 &&
      (options.source_column.empty() || options.target_column.empty())) {
    const std::vector<std::string_view> there(names.begin(), names.end());
    refuse(path_, first.line,
           fmt::format("two columns with texts were expected, `input` and `output`: it has {}",
                       printable(joined(there), 400)),
           {"--text_column NAME --summary_column NAME", "name the source and the target"});
  }
  source_ = !options.source_column.empty()
                ? column_named(names, options.source_column, "source", path_)
            : by_name ? "input"
                      : texts[0];
  target_ = !options.target_column.empty()
                ? column_named(names, options.target_column, "target", path_)
            : by_name ? std::string(*known)
                      : texts[1];
  if (source_ == target_) {
    if (options.source_column.empty() && options.target_column.empty()) {
      refuse(path_, first.line,
             fmt::format("two columns have the same name, \"{}\"", printable(source_)),
             {"name the columns `input` and `output`", "no option is needed then"});
    }
    fail(ErrorCode::usage, "{}: column {} is both source and target", path_, printable(source_));
  }
  const auto place = [&](std::string_view name) {
    return to_size(std::ranges::find(names, name) - names.begin());
  };
  fields_ = names.size();
  source_field_ = place(source_), target_field_ = place(target_);
  if (has(kQuality)) quality_field_ = place(kQuality);
}

TextPair PairColumns::parse(const RawRecord& record) const {
  TextPair pair = format_ == RecordFormat::json_lines ? parse_json(record) : parse_fields(record);
  if (!pair.source.empty()) pair.source.insert(0, prefix_);
  return pair;
}

TextPair PairColumns::parse_json(const RawRecord& record) const {
  TextPair pair;
  bool has_source = false, has_target = false;
  JsonReader json(json_source(record, path_));
  const auto text = [&](std::string& to, bool& has, const std::string& name) {
    has = true;
    if (json.peek() == JsonReader::Kind::null) {
      to.clear();
      return json.null();
    }
    if (json.peek() != JsonReader::Kind::string) {
      refuse(path_, record.line,
             fmt::format("{} is {}, a text was expected", printable(name), name_of(json.peek())));
    }
    to = json.string();
  };
  json.open_object();
  for (std::string_view key; json.next_key(key);) {
    if (key == source_) {
      text(pair.source, has_source, source_);
    } else if (key == target_) {
      text(pair.target, has_target, target_);
    } else if (key == kQuality && json.peek() != JsonReader::Kind::null) {
      if (json.peek() != JsonReader::Kind::number) {
        refuse(path_, record.line,
               fmt::format("{} is {}, a number was expected", kQuality, name_of(json.peek())));
      }
      pair.quality = json.number();
    } else {
      json.skip();
    }
  }
  json.finish();
  if (!has_source || !has_target) {
    refuse(path_, record.line,
           fmt::format("there is no {}", printable(has_source ? target_ : source_)));
  }
  return pair;
}

TextPair PairColumns::parse_fields(const RawRecord& record) const {
  std::vector<std::string> fields =
      csv_fields(record, format_ == RecordFormat::tsv ? '\t' : ',', path_);
  if (fields.size() != fields_) {
    refuse(path_, record.line, fmt::format("{} fields, the header has {}", fields.size(), fields_));
  }
  TextPair pair = {.source = std::move(fields[source_field_]),
                   .target = std::move(fields[target_field_])};
  if (!quality_field_ || fields[*quality_field_].empty()) return pair;
  const std::string& text = fields[*quality_field_];
  const auto end = std::from_chars(text.data(), text.data() + text.size(), pair.quality);
  if (end.ec != std::errc() || end.ptr != text.data() + text.size()) {
    refuse(path_, record.line, fmt::format("{} {} is no number", kQuality, printable(text)));
  }
  return pair;
}

}  // namespace ballast::data
