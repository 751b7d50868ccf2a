// The only source that includes toml++: its headers take seconds to compile.
#define TOML_EXCEPTIONS 0
#define TOML_HEADER_ONLY 1
#define TOML_MAX_NESTED_VALUES 32
// Its assertions do not hold for broken files ("[%"), which it refuses a few lines later.
#define TOML_ASSERT(condition) static_assert(true)
#include <toml++/toml.h>

#include <algorithm>
#include <charconv>
#include <tuple>

#include "core/utf8_sequence.h"
#include "io/json_reader.h"
#include "io/toml_table.h"
#include "io/utf8.h"
#include "memory/text_file.h"

namespace ballast {
namespace {

[[noreturn]] void refuse(const std::string& path, std::size_t line, std::size_t column,
                         std::string_view what) {
  fail(ErrorCode::input, fmt::format("{} line {} column {}: {}", path, line, column, what));
}

[[noreturn]] void refuse_at(const std::string& path, std::string_view text, std::size_t at,
                            std::string_view what) {
  const std::string_view before = text.substr(0, at);
  const std::size_t newline = before.rfind('\n');
  const std::size_t begin = newline == std::string_view::npos ? 0 : newline + 1;
  refuse(path, static_cast<std::size_t>(std::ranges::count(before, '\n')) + 1, at - begin + 1,
         what);
}

bool is_ascii(char c) { return static_cast<unsigned char>(c) < 0x80; }

// Keeps from toml++ what it does not stand. It bounds nested brackets, but a key of a million parts
// becomes a million tables inside each other, and freeing those overflows the stack. And its test
// for white space is undefined for letters of most alphabets.
class HostileScan {
 public:
  HostileScan(const std::string& path, std::string_view text) : path_(path), text_(text) {}

  // The text to parse instead: the same, with escapes for letters that it would test so.
  std::string run() {
    if (text_.starts_with("\xEF\xBB\xBF")) at_ = 3;
    int parts = 1;
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '#') {
        at_ = std::min(text_.find('\n', at_), text_.size());
      } else if (c == '"' || c == '\'') {
        skip_string(c);
      } else {
        const bool joins = c == ' ' || c == '\t' || c == '_' || c == '-' ||
                           (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') ||
                           (c >= 'A' && c <= 'Z');
        if (c == '.') {
          if (++parts > TomlFile::kMostDepth) {
            refuse_at(path_, text_, at_,
                      fmt::format("a key of more than {} parts", TomlFile::kMostDepth));
          }
        } else if (!is_ascii(c)) {
          refuse_at(path_, text_, at_, "a character that belongs in quotes");
        } else if (!joins) {
          parts = 1;
        }
        ++at_;
      }
    }
    return escaped_ + std::string(text_.substr(copied_));
  }

 private:
  bool stands(std::string_view word) const { return text_.substr(at_).starts_with(word); }

  void skip_string(char quote) {
    const std::string three(3, quote);
    const bool block = stands(three);
    at_ += block ? 3 : 1;
    while (at_ < text_.size()) {
      if (quote == '"' && text_[at_] == '\\') {
        skip_escape();
      } else if (block ? stands(three) : text_[at_] == quote) {
        at_ += block ? 3 : 1;
        return;
      } else if (!block && text_[at_] == '\n') {
        return;  // a syntax error, which the parser words better
      } else {
        ++at_;
      }
    }
  }

  // A line that ends with a backslash continues at the next letter of a later line.
  void skip_escape() {
    const std::size_t next = std::min(text_.find_first_not_of(" \t\r\n", ++at_), text_.size());
    if (next == text_.size() || is_ascii(text_[next])) {
      at_ = std::min(at_ + 1, text_.size());
      return;
    }
    if (next == at_) refuse_at(path_, text_, at_, "an escape that TOML does not have");
    const std::string_view letter = text_.substr(next, utf8_sequence_length(text_.substr(next)));
    escaped_ += text_.substr(copied_, next - copied_);
    escaped_ += fmt::format("\\U{:08x}", static_cast<std::uint32_t>(utf8_code_point(letter)));
    copied_ = at_ = next + letter.size();
  }

  const std::string& path_;
  std::string_view text_;
  std::size_t at_ = 0;
  std::string escaped_;  // of the text up to copied_
  std::size_t copied_ = 0;
};

TomlValue converted(const toml::node& node);

TomlValue converted_table(const toml::table& table) {
  TomlValue out;
  using Place = std::tuple<std::size_t, std::size_t>;
  std::vector<std::pair<Place, const toml::key*>> order;  // toml++ sorts by name
  for (const auto& [key, node] : table) {
    const auto begin = key.source().begin;
    order.push_back({Place(begin.line, begin.column), &key});
  }
  std::ranges::sort(order, {}, [](const auto& o) { return o.first; });
  for (const auto& [place, key] : order) {
    TomlValue value = converted(*table.get(key->str()));
    value.line = static_cast<int>(std::get<0>(place));
    out.members.push_back({std::string(key->str()), std::move(value)});
  }
  return out;
}

TomlValue converted(const toml::node& node) {
  TomlValue out;
  if (const auto* table = node.as_table()) {
    out = converted_table(*table);
  } else if (const auto* array = node.as_array()) {
    out.kind = TomlValue::Kind::array;
    out.items.reserve(array->size());
    for (const toml::node& item : *array) out.items.push_back(converted(item));
  } else if (const auto* text = node.as_string()) {
    out.kind = TomlValue::Kind::string;
    out.string = text->get();
  } else if (const auto* integer = node.as_integer()) {
    out.kind = TomlValue::Kind::integer;
    out.integer = integer->get();
  } else if (const auto* real = node.as_floating_point()) {
    out.kind = TomlValue::Kind::real;
    out.real = real->get();
  } else if (const auto* boolean = node.as_boolean()) {
    out.kind = TomlValue::Kind::boolean;
    out.boolean = boolean->get();
  } else {
    out.kind = TomlValue::Kind::date;
  }
  out.line = static_cast<int>(node.source().begin.line);
  return out;
}

// The same tree from JSON; null is a key that is not there.
class JsonTree {
 public:
  JsonTree(std::string_view text, const std::string& path)
      : text_(text), json_({.text = text, .path = path, .rule = "config"}) {}

  TomlValue read() {
    if (json_.peek() != JsonReader::Kind::object) json_.fail_here("expected an object");
    TomlValue root = value();
    json_.finish();
    return root;
  }

 private:
  int line() {
    const std::size_t now = json_.file_offset();
    line_ += static_cast<int>(std::ranges::count(text_.substr(counted_, now - counted_), '\n'));
    counted_ = now;
    return line_;
  }

  TomlValue value() {
    const JsonReader::Kind kind = json_.peek();
    TomlValue out;
    out.line = line();
    switch (kind) {
      case JsonReader::Kind::object:
        object(out);
        break;
      case JsonReader::Kind::array:
        out.kind = TomlValue::Kind::array;
        json_.open_array();
        while (json_.next_element()) out.items.push_back(value());
        break;
      case JsonReader::Kind::string:
        out.kind = TomlValue::Kind::string;
        out.string = json_.string();
        break;
      case JsonReader::Kind::number:
        number(out);
        break;
      case JsonReader::Kind::boolean:
        out.kind = TomlValue::Kind::boolean;
        out.boolean = json_.boolean();
        break;
      case JsonReader::Kind::null:
        json_.fail_here("null is not a value here");
    }
    return out;
  }

  void object(TomlValue& out) {
    json_.open_object();
    for (std::string_view key; json_.next_key(key);) {
      std::string name(key);
      if (json_.peek() == JsonReader::Kind::null) {
        json_.null();
        continue;
      }
      out.members.push_back({std::move(name), value()});
    }
    std::vector<std::string_view> names;
    for (const auto& m : out.members) names.push_back(m.key);
    std::ranges::sort(names);
    const auto twice = std::ranges::adjacent_find(names);
    if (twice != names.end()) {
      json_.fail_here(fmt::format("the key \"{}\" occurs twice", printable(*twice, 60)));
    }
  }

  void number(TomlValue& out) {
    const std::string_view text = json_.number_text();
    const char* end = text.data() + text.size();
    const auto integer = std::from_chars(text.data(), end, out.integer);
    if (integer.ec == std::errc() && integer.ptr == end) {
      out.kind = TomlValue::Kind::integer;
      return;
    }
    out.kind = TomlValue::Kind::real;
    const auto real = std::from_chars(text.data(), end, out.real);
    if (real.ec != std::errc() || real.ptr != end) json_.fail_value("a number out of range");
  }

  std::string_view text_;
  JsonReader json_;
  std::size_t counted_ = 0;
  int line_ = 1;
};

void refuse_strange_bytes(const std::string& path, std::string_view text) {
  if (text.size() > TomlFile::kMostBytes) {
    fail(ErrorCode::input, fmt::format("{}: {} bytes are no configuration, at most {} are read",
                                       path, text.size(), TomlFile::kMostBytes));
  }
  if (const auto at = first_invalid_utf8(text)) {
    refuse_at(path, text, *at, "the file is not UTF-8 text");
  }
  if (const auto at = text.find('\0'); at != std::string_view::npos) {
    refuse_at(path, text, at, "a NUL byte in the text");
  }
}

}  // namespace

TomlFile TomlFile::read(const std::string& path) {
  const std::string text = read_text_file(path, kMostBytes, "a configuration");
  return path.ends_with(".json") ? parse_json(text, path) : parse(text, path);
}

TomlFile TomlFile::parse(std::string_view text, std::string path) {
  refuse_strange_bytes(path, text);
  const toml::parse_result parsed = toml::parse(HostileScan(path, text).run(), path);
  if (!parsed) {
    const auto begin = parsed.error().source().begin;
    std::string problem = printable(parsed.error().description(), 200);
    constexpr std::string_view kLineEnd = "saw '\\n'";  // as toml++ writes it
    if (const auto at = problem.find(kLineEnd); at != problem.npos) {
      problem.replace(at, kLineEnd.size(), "the line ends here");
    }
    refuse(path, begin.line, begin.column, problem);
  }
  TomlFile file;
  file.content_ = std::make_unique<Content>();
  file.content_->root = converted_table(parsed.table());
  file.content_->root.line = 1;
  file.content_->path = std::move(path);
  file.content_->text = text;
  return file;
}

TomlFile TomlFile::parse_json(std::string_view text, std::string path) {
  refuse_strange_bytes(path, text);
  TomlFile file;
  file.content_ = std::make_unique<Content>();
  file.content_->root = JsonTree(text, path).read();
  file.content_->path = std::move(path);
  file.content_->text = text;
  return file;
}

TomlTable TomlFile::root() const { return TomlTable(&content_->path, &content_->root, ""); }

}  // namespace ballast
