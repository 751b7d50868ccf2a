#include "data/sentencepiece_model.h"

#include <cstring>
#include <filesystem>
#include <optional>

#include "core/error.h"
#include "core/path_kind.h"
#include "core/to_size.h"
#include "data/tokenizer_file.h"
#include "io/json_reader.h"

namespace ballast::data {
namespace {

constexpr std::uint64_t kUnigram = 1;
constexpr std::uint64_t kMaxSentinels = 4096;

// A protobuf message, field by field. Nothing is built: strings point into the message.
class ProtoReader {
 public:
  ProtoReader(std::string_view text, const std::string& path, std::size_t file_offset)
      : text_(text), path_(&path), file_offset_(file_offset) {}

  // False at the end of the message.
  bool next() {
    if (at_ == text_.size()) return false;
    const std::uint64_t key = varint();
    field_ = key >> 3;
    if (field_ == 0) refuse("field number 0");
    const auto kind = key & 7;
    number_ = 0;
    bytes_ = {};
    if (kind == 0) {
      number_ = varint();
    } else if (kind == 1 || kind == 5) {
      take(kind == 1 ? 8 : 4);
    } else if (kind == 2) {
      const std::uint64_t length = varint();
      if (length > text_.size() - at_) {
        refuse(
            fmt::format("field {} has {} bytes, {} are left", field_, length, text_.size() - at_));
      }
      take(length);
    } else {
      refuse(fmt::format("field {} has the wire type {}", field_, kind));
    }
    kind_ = static_cast<int>(kind);
    return true;
  }

  std::uint64_t field() const { return field_; }
  std::size_t offset() const { return file_offset_ + at_; }

  std::string_view bytes() const { return expect(2), bytes_; }
  std::uint64_t number() const { return expect(0), number_; }
  bool boolean() const { return number() != 0; }
  std::int32_t id() const { return static_cast<std::int32_t>(number()); }  // -1 is ten bytes
  float real() const {
    expect(5);
    float value = 0;
    std::memcpy(&value, bytes_.data(), sizeof value);
    return value;
  }
  ProtoReader message() const { return {bytes(), *path_, file_offset_ + at_ - bytes_.size()}; }

  [[noreturn]] void refuse(const std::string& what) const {
    fail(ErrorCode::input, "{}: spm.format: {} at byte offset {}", *path_, what, offset());
  }

 private:
  void expect(int kind) const {
    if (kind_ != kind) refuse(fmt::format("field {} has the wire type {}", field_, kind_));
  }
  void take(std::uint64_t count) {
    if (count > text_.size() - at_) refuse(fmt::format("field {} is cut off", field_));
    bytes_ = text_.substr(at_, count);
    at_ += count;
  }
  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (at_ == text_.size()) refuse("a number is cut off");
      const auto byte = static_cast<unsigned char>(text_[at_++]);
      value |= std::uint64_t{byte & 0x7fu} << shift;
      if (byte < 0x80) return value;
    }
    refuse("a number of more than ten bytes");
  }

  std::string_view text_;
  const std::string* path_;
  std::size_t file_offset_;
  std::size_t at_ = 0;
  std::uint64_t field_ = 0, number_ = 0;
  int kind_ = 0;
  std::string_view bytes_;
};

struct Ids {
  std::optional<std::int32_t> eos, pad;
};

void read_piece(ProtoReader piece, VocabularyLimits& limits, TokenizerModel& model) {
  std::string_view text;
  float score = 0;
  std::uint64_t type = 1;
  while (piece.next()) {
    if (piece.field() == 1) text = piece.bytes();
    if (piece.field() == 2) score = piece.real();
    if (piece.field() == 3) type = piece.number();
  }
  if (text.empty()) piece.refuse(fmt::format("piece {} is empty", model.pieces.size()));
  if (type < 1 || type > 6) piece.refuse(fmt::format("piece type {}", type));
  limits.add(text, static_cast<double>(score), piece.offset());
  model.pieces.emplace_back(text);
  model.scores.push_back(static_cast<double>(score));
  model.types.push_back(static_cast<PieceType>(type));
}

void read_trainer(ProtoReader spec, TokenizerModel& model, Ids& ids) {
  while (spec.next()) {
    if (spec.field() == 3 && spec.number() != kUnigram) {
      spec.refuse(fmt::format("model type {}, only unigram (1) is read,", spec.number()));
    }
    if (spec.field() == 24) model.whitespace_as_suffix = spec.boolean();
    if (spec.field() == 35) model.byte_fallback = spec.boolean();
    if (spec.field() == 42) ids.eos = spec.id();
    if (spec.field() == 43) ids.pad = spec.id();
  }
}

void read_normalizer(ProtoReader spec, TokenizerModel& model) {
  while (spec.next()) {
    if (spec.field() == 2) model.character_map = spec.bytes();
    if (spec.field() == 3) model.add_dummy_prefix = spec.boolean();
    if (spec.field() == 4) model.remove_extra_whitespaces = spec.boolean();
    if (spec.field() == 5) model.escape_whitespaces = spec.boolean();
  }
}

// The pieces say which is unknown; what the trainer noted for the others counts where it names a
// piece of that kind, else its usual spelling.
void choose_ids(TokenizerModel& model, const Ids& ids, const std::string& path) {
  const auto count = static_cast<std::int32_t>(model.pieces.size());
  std::int32_t unknowns = 0, bytes = 0;
  for (std::int32_t i = 0; i < count; ++i) {
    const PieceType type = model.types[to_size(i)];
    bytes += type == PieceType::byte ? 1 : 0;
    if (type != PieceType::unknown) continue;
    model.unk_id = i;
    ++unknowns;
  }
  const auto refuse = [&](const std::string& what) {
    fail(ErrorCode::input, "{}: spm.pieces: {}", path, what);
  };
  if (unknowns != 1) refuse(fmt::format("{} pieces are unknown ones, expected 1", unknowns));
  if (model.byte_fallback && bytes != 256) {
    refuse(fmt::format("byte fallback with {} byte pieces, expected 256", bytes));
  }
  const auto choose = [&](std::optional<std::int32_t> id, std::string_view name) {
    if (id && *id >= 0 && *id < count) return *id;
    for (std::int32_t i = 0; i < count; ++i) {
      if (model.pieces[to_size(i)] == name) return i;
    }
    return -1;
  };
  model.eos_id = choose(ids.eos, "</s>");
  model.pad_id = choose(ids.pad, "<pad>");
  if (model.eos_id < 0) refuse("there is no piece \"</s>\"");
}

// <extra_id_0> is the last id, as the T5 tokenizer classes count.
void add_sentinels(TokenizerModel& model, const std::string& config_path) {
  if (!is_file(config_path)) return;
  const std::string text = read_tokenizer_file(config_path);
  JsonReader json({.text = text, .path = config_path, .rule = "tok.config"});
  std::uint64_t count = 0;
  json.open_object();
  for (std::string_view key; json.next_key(key);) {
    if (key == "extra_ids" && json.peek() == JsonReader::Kind::number) {
      count = json.u64();
      if (count > kMaxSentinels) json.fail_value(fmt::format("more than {}", kMaxSentinels));
    } else if (key == "legacy" && json.peek() == JsonReader::Kind::boolean) {
      model.prefix_every_span = json.boolean();
    } else {
      json.skip();
    }
  }
  json.finish();
  const auto pieces = static_cast<std::int32_t>(model.pieces.size());
  for (std::int32_t n = 0; n < static_cast<std::int32_t>(count); ++n) {
    model.added.push_back({.text = fmt::format("<extra_id_{}>", n),
                           .id = pieces + static_cast<std::int32_t>(count) - 1 - n});
  }
}

}  // namespace

TokenizerModel read_sentencepiece_model(const std::string& path) {
  const std::string text = read_tokenizer_file(path);
  TokenizerModel model;
  model.source = TokenizerModel::Source::sentencepiece;
  VocabularyLimits limits("spm.limit", path);
  Ids ids;
  for (ProtoReader proto(text, path, 0); proto.next();) {
    if (proto.field() == 1) read_piece(proto.message(), limits, model);
    if (proto.field() == 2) read_trainer(proto.message(), model, ids);
    if (proto.field() == 3) read_normalizer(proto.message(), model);
  }
  choose_ids(model, ids, path);
  check_pieces_are_different(model, "spm.pieces", path);
  add_sentinels(model, (std::filesystem::path(path).parent_path() / "tokenizer_config.json"));
  return model;
}

}  // namespace ballast::data
