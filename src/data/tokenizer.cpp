#include "data/tokenizer.h"

#include <algorithm>

#include "core/error.h"
#include "core/path_kind.h"
#include "core/to_size.h"
#include "data/sentencepiece_model.h"
#include "data/tokenizer_file.h"
#include "data/tokenizer_json.h"
#include "data/unicode_text.h"
#include "io/utf8.h"
#include "memory/disk_file.h"

namespace ballast::data {
namespace {

constexpr std::string_view kUnknownText = " \u2047 ";

std::vector<std::string> texts_of(std::span<const AddedToken> added) {
  std::vector<std::string> texts;
  for (const AddedToken& token : added) texts.push_back(token.text);
  return texts;
}

std::string file_in(const std::string& folder) {
  for (const char* below : {"", "/tokenizer", "/google/umt5-xxl"}) {
    for (const char* name : {"/tokenizer.json", "/spiece.model"}) {
      const std::string path = folder + below + name;
      if (is_file(path)) return path;
    }
  }
  fail(ErrorCode::input,
       fmt::format("{}: tok.folder: it holds no tokenizer.json and no spiece.model, and neither do "
                   "tokenizer/ and google/umt5-xxl/ in it",
                   folder),
       {{"--tokenizer FILE", "names the file itself"}});
}

// JSON begins with a brace; a ModelProto with the key of its first piece, a line feed, which JSON
// may have in front of the brace.
bool is_json(const std::string& path) {
  const DiskFile file = DiskFile::open(path, DiskMode::buffered);
  std::string first(std::min<std::uint64_t>(file.size(), 64), '\0');
  file.read(0, std::as_writable_bytes(std::span(first)));
  const std::size_t at = first.find_first_not_of(" \t\r\n");
  return at != std::string::npos && first[at] == '{' &&
         (first[0] != '\n' || path.ends_with(".json"));
}

// "<0x0A>" -> 10
std::optional<char> byte_of(std::string_view piece) {
  if (piece.size() != 6 || !piece.starts_with("<0x") || piece[5] != '>') return std::nullopt;
  const auto digit = [](char c) { return c <= '9' ? c - '0' : c - 'A' + 10; };
  return static_cast<char>(digit(piece[3]) << 4 | digit(piece[4]));
}

std::string with_spaces(std::string_view piece) {
  std::string out;
  while (true) {
    const std::size_t at = piece.find(kSpaceSymbol);
    out += piece.substr(0, at);
    if (at == std::string_view::npos) return out;
    out += ' ';
    piece.remove_prefix(at + kSpaceSymbol.size());
  }
}

}  // namespace

Tokenizer Tokenizer::open(const std::string& path) {
  const std::string file = is_folder(path) ? file_in(path) : path;
  const bool json = !is_tensor_file(file) && is_json(file);
  return Tokenizer(json ? read_tokenizer_json(file) : read_sentencepiece_model(file), file);
}

Tokenizer::Tokenizer(TokenizerModel model, std::string path)
    : path_(std::move(path)),
      model_(std::move(model)),
      unigram_(model_),
      normalizer_(model_, path_),
      added_(texts_of(model_.added)),
      vocab_size_(static_cast<std::int32_t>(model_.pieces.size())) {
  for (const AddedToken& token : model_.added) vocab_size_ = std::max(vocab_size_, token.id + 1);
}

const AddedToken* Tokenizer::added_at(std::string_view text) const {
  std::uint32_t node = PieceTrie::kRoot;
  std::int32_t longest = -1;
  for (const char c : text) {
    if (!added_.step(node, c)) break;
    if (added_.value(node) >= 0) longest = added_.value(node);
  }
  return longest < 0 ? nullptr : &model_.added[to_size(longest)];
}

std::vector<std::int32_t> Tokenizer::encode(std::string_view text) const {
  std::vector<std::int32_t> ids;
  ids.reserve(text.size() / 3 + 2);
  std::string fixed;
  if (model_.source == TokenizerModel::Source::tokenizer_json && first_invalid_utf8(text)) {
    fixed = well_formed(text);
    text = fixed;
  }
  std::size_t begin = 0;  // of the span that is no added token
  for (std::size_t at = 0; !added_.empty() && at < text.size();) {
    const AddedToken* token = added_at(text.substr(at));
    if (token == nullptr) {
      ++at;
      continue;
    }
    std::string_view span = text.substr(begin, at - begin);
    if (token->strip_left) {
      while (!span.empty() && span.back() == ' ') span.remove_suffix(1);
    }
    encode_span(span, begin == 0, ids);
    ids.push_back(token->id);
    at += token->text.size();
    while (token->strip_right && at < text.size() && text[at] == ' ') ++at;
    begin = at;
  }
  encode_span(text.substr(begin), begin == 0, ids);
  return ids;
}

std::vector<std::int32_t> Tokenizer::encode(std::string_view text, std::size_t max_length) const {
  check(max_length > 0, "no room for </s>");
  std::vector<std::int32_t> ids = encode(text);
  ids.resize(std::min(ids.size(), max_length - 1));
  ids.push_back(model_.eos_id);
  return ids;
}

void Tokenizer::encode_span(std::string_view span, bool first,
                            std::vector<std::int32_t>& ids) const {
  if (span.empty()) return;
  if (model_.source == TokenizerModel::Source::sentencepiece) {
    thread_local std::string text;  // keeps its room from call to call
    normalizer_.sentencepiece(span, !first && !model_.prefix_every_span, text);
    return unigram_.encode(text, ids);
  }
  if (model_.steps.empty()) return encode_words(span, first, ids);
  encode_words(normalizer_.steps(span), first, ids);
}

void Tokenizer::encode_words(std::string_view text, bool first,
                             std::vector<std::int32_t>& ids) const {
  if (!model_.split_whitespace) return encode_metaspace(text, first, ids);
  std::size_t begin = 0;
  for (std::size_t at = 0; at <= text.size();) {
    const Character c = at < text.size() ? character_at(text.substr(at)) : Character{U' ', 1};
    if (is_white_space(c.code)) {
      encode_metaspace(text.substr(begin, at - begin), first && begin == 0, ids);
      begin = at + c.length;
    }
    at += c.length;
  }
}

void Tokenizer::encode_metaspace(std::string_view text, bool first,
                                 std::vector<std::int32_t>& ids) const {
  if (text.empty()) return;
  if (!model_.metaspace) return unigram_.encode(text, ids);
  thread_local std::string escaped;
  escaped.clear();
  const bool prefix =
      model_.prefix == PrefixSpace::always || (model_.prefix == PrefixSpace::first && first);
  if (prefix && text[0] != ' ' && !text.starts_with(kSpaceSymbol)) escaped += kSpaceSymbol;
  for (const char c : text) {
    if (c == ' ') {
      escaped += kSpaceSymbol;
    } else {
      escaped += c;
    }
  }
  std::string_view rest = escaped;
  if (!model_.split_metaspace) return unigram_.encode(rest, ids);
  while (!rest.empty()) {
    const std::size_t end = std::min(rest.find(kSpaceSymbol, 1), rest.size());
    unigram_.encode(rest.substr(0, end), ids);
    rest.remove_prefix(end);
  }
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids) const {
  const bool sentencepiece = model_.source == TokenizerModel::Source::sentencepiece;
  // SentencePiece drops every space in front where it drops extra ones, else only its own prefix.
  const bool drop_all = sentencepiece && model_.remove_extra_whitespaces;
  bool at_start = !sentencepiece || model_.add_dummy_prefix || model_.remove_extra_whitespaces;
  std::string out, bytes;
  const auto flush = [&] {
    out += well_formed(bytes);
    bytes.clear();
  };
  for (const std::int32_t id : ids) {
    if (id < 0 || to_size(id) >= model_.pieces.size()) continue;
    const auto i = to_size(id);
    std::string_view piece = model_.pieces[i];
    const PieceType type = model_.types[i];
    const auto byte = type == PieceType::byte || (!sentencepiece && model_.byte_fallback)
                          ? byte_of(piece)
                          : std::nullopt;
    if (byte) {
      bytes += *byte;
      at_start = false;
      continue;
    }
    flush();
    if (type == PieceType::control) continue;
    if (type == PieceType::unknown) {
      if (!sentencepiece) continue;
      out += kUnknownText;
      at_start = false;
      continue;
    }
    if (at_start && piece.starts_with(kSpaceSymbol)) {
      piece.remove_prefix(kSpaceSymbol.size());
      at_start = drop_all;
    }
    out += with_spaces(piece);
    at_start = at_start && piece.empty();
  }
  flush();
  return out;
}

std::optional<std::int32_t> Tokenizer::find(std::string_view token) const {
  for (const AddedToken& t : model_.added) {
    if (t.text == token) return t.id;
  }
  const auto at = std::find(model_.pieces.begin(), model_.pieces.end(), token);
  if (at == model_.pieces.end()) return std::nullopt;
  return static_cast<std::int32_t>(at - model_.pieces.begin());
}

}  // namespace ballast::data
