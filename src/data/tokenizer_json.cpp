#include "data/tokenizer_json.h"

#include <optional>

#include "core/error.h"
#include "core/to_size.h"
#include "data/tokenizer_file.h"
#include "io/json_reader.h"

namespace ballast::data {
namespace {

constexpr std::size_t kMaxSteps = 32;
constexpr std::uint64_t kMaxAdded = 65'536;

std::string decode_base64(std::string_view text, const JsonReader& json) {
  std::string out;
  out.reserve(text.size() / 4 * 3);
  while (text.ends_with('=')) text.remove_suffix(1);
  std::uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    const int value = c >= 'A' && c <= 'Z'   ? c - 'A'
                      : c >= 'a' && c <= 'z' ? c - 'a' + 26
                      : c >= '0' && c <= '9' ? c - '0' + 52
                      : c == '+'             ? 62
                      : c == '/'             ? 63
                                             : -1;
    if (value < 0) json.fail_value("precompiled_charsmap is not base64");
    bits = bits << 6 | static_cast<std::uint32_t>(value);
    count += 6;
    if (count < 8) continue;
    count -= 8;
    out += static_cast<char>(bits >> count & 0xff);
  }
  return out;
}

// Reads the parts in the order in which they stand, then checks them against each other.
class TokenizerJson {
 public:
  TokenizerJson(std::string_view text, const std::string& path)
      : path_(path), json_({.text = text, .path = path, .rule = "tok.json"}) {
    model_.source = TokenizerModel::Source::tokenizer_json;
  }

  TokenizerModel read() {
    bool seen_model = false;
    json_.open_object();
    for (std::string_view key; json_.next_key(key);) {
      if (key == "added_tokens") {
        read_added();
      } else if (key == "normalizer") {
        if (!skip_null()) read_normalizer(0);
      } else if (key == "pre_tokenizer") {
        if (!skip_null()) read_pre_tokenizer(0);
      } else if (key == "model") {
        if (seen_model) json_.fail_here("a second \"model\"");
        seen_model = true;
        read_model();
      } else {
        json_.skip();  // truncation, padding, post_processor, decoder: as T5's, always
      }
    }
    json_.finish();
    if (!seen_model) json_.fail_here("there is no \"model\"");
    check_ids();
    return std::move(model_);
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    fail(ErrorCode::input, "{}: tok.json: {}", path_, what);
  }
  [[noreturn]] void unsupported(std::string_view what, std::string_view name) const {
    fail(ErrorCode::input,
         fmt::format("{}: tok.unsupported: {} \"{}\"", path_, what, printable(name)),
         {{"spiece.model", "of the same model is read without it, where there is one"}});
  }

  bool skip_null() {
    if (json_.peek() != JsonReader::Kind::null) return false;
    json_.null();
    return true;
  }

  void read_added() {
    json_.open_array();
    while (json_.next_element()) {
      AddedToken token;
      std::optional<std::uint64_t> id;
      json_.object({
          {"id", [&] { id = json_.u64(); }},
          {"content", [&] { token.text = json_.string(); }},
          {"lstrip", [&] { token.strip_left = json_.boolean(); }},
          {"rstrip", [&] { token.strip_right = json_.boolean(); }},
          {"single_word",
           [&] {
             if (json_.boolean()) unsupported("single_word of the added token", token.text);
           }},
          {"normalized",
           [&] {
             if (json_.boolean()) unsupported("normalized of the added token", token.text);
           }},
      });
      if (!id || token.text.empty()) json_.fail_here("an added token without id or content");
      if (*id > 0x7ffffff0) json_.fail_here(fmt::format("an added token with the id {}", *id));
      if (token.text.size() > 1024) json_.fail_here("an added token of more than 1024 bytes");
      if (model_.added.size() == kMaxAdded) {
        json_.fail_here(fmt::format("more than {} added tokens", kMaxAdded));
      }
      token.id = static_cast<std::int32_t>(*id);
      model_.added.push_back(std::move(token));
    }
  }

  // One of {"type": "Sequence", "normalizers": [...]} and the steps themselves. Keys come in any
  // order, so all that any of them has is read first.
  void read_normalizer(int depth) {
    if (depth > 4) json_.fail_here("normalizers nested deeper than 4");
    TextStep step;
    std::string type, content;
    bool regex = false, pattern = false;
    const std::size_t begin = model_.steps.size();
    json_.object({
        {"type", [&] { type = json_.string(); }},
        {"normalizers",
         [&] {
           json_.open_array();
           while (json_.next_element()) read_normalizer(depth + 1);
         }},
        {"precompiled_charsmap",
         [&] { model_.character_map = decode_base64(json_.string(), json_); }},
        {"strip_left", [&] { step.left = json_.boolean(); }},
        {"strip_right", [&] { step.right = json_.boolean(); }},
        {"content", [&] { step.to = json_.string(); }},
        {"pattern",
         [&] {
           pattern = true;
           regex = read_pattern(step.from);
         }},
    });
    if (type == "Sequence") return;
    if (model_.steps.size() != begin) json_.fail_here("a normalizer inside another");
    if (type == "Precompiled") {
      if (model_.character_map.empty()) return;  // no rules
      step.kind = TextStep::Kind::character_map;
    } else if (type == "Strip") {
      step.kind = TextStep::Kind::strip;
    } else if (type == "NFC") {
      step.kind = TextStep::Kind::canonical_form;
    } else if (type == "Replace" && pattern && !regex && !step.from.empty()) {
      step.kind = TextStep::Kind::replace;
    } else if (type == "Replace" && pattern && step.from == " {2,}") {
      step.kind = TextStep::Kind::replace_spaces;
    } else if (type == "Replace") {
      unsupported("a normalizer that replaces", step.from);
    } else {
      unsupported("the normalizer", type);
    }
    if (model_.steps.size() == kMaxSteps) {
      json_.fail_here(fmt::format("more than {} normalizers", kMaxSteps));
    }
    model_.steps.push_back(std::move(step));
  }

  // {"Regex": "..."} or {"String": "..."}; true for the first.
  bool read_pattern(std::string& text) {
    bool regex = false;
    json_.open_object();
    for (std::string_view key; json_.next_key(key);) {
      regex = key == "Regex";
      if (!regex && key != "String") unsupported("the pattern", key);
      text = json_.string();
    }
    return regex;
  }

  void read_pre_tokenizer(int depth) {
    if (depth > 4) json_.fail_here("pre-tokenizers nested deeper than 4");
    std::string type, scheme, replacement(kSpaceSymbol);
    bool add_prefix = true, split = true;
    const bool had = model_.metaspace || model_.split_whitespace;
    json_.object({
        {"type", [&] { type = json_.string(); }},
        {"pretokenizers",
         [&] {
           json_.open_array();
           while (json_.next_element()) read_pre_tokenizer(depth + 1);
         }},
        {"prepend_scheme", [&] { scheme = json_.string(); }},
        {"add_prefix_space", [&] { add_prefix = json_.boolean(); }},
        {"split", [&] { split = json_.boolean(); }},
        {"replacement", [&] { replacement = json_.string(); }},
        {"str_rep", [&] { replacement = json_.string(); }},
    });
    if (type == "Sequence") return;
    if (type == "WhitespaceSplit") {
      if (model_.metaspace) unsupported("a pre-tokenizer behind Metaspace,", type);
      model_.split_whitespace = true;
      return;
    }
    if (type != "Metaspace" || (had && model_.metaspace)) unsupported("the pre-tokenizer", type);
    if (replacement != kSpaceSymbol) unsupported("Metaspace with the symbol", replacement);
    model_.metaspace = true;
    model_.split_metaspace = split;
    if (scheme.empty()) scheme = add_prefix ? "always" : "never";
    if (scheme == "always") {
      model_.prefix = PrefixSpace::always;
    } else if (scheme == "first") {
      model_.prefix = PrefixSpace::first;
    } else if (scheme == "never") {
      model_.prefix = PrefixSpace::never;
    } else {
      unsupported("prepend_scheme", scheme);
    }
  }

  // Files of the original T5 name no model type. The tokenizers library then tells the kind of
  // model by its members: pieces in a list, each with a score, are a unigram model.
  void read_model() {
    std::optional<std::uint64_t> unk;
    VocabularyLimits limits("tok.limit", path_);
    json_.object({
        {"type",
         [&] {
           const std::string type(json_.string());
           if (type != "Unigram") unsupported("the model", type);
         }},
        {"unk_id",
         [&] {
           if (!skip_null()) unk = json_.u64();
         }},
        {"byte_fallback", [&] { model_.byte_fallback = json_.boolean(); }},
        {"vocab", [&] { read_vocabulary(limits); }},
    });
    if (model_.pieces.empty()) json_.fail_here("the vocabulary is empty");
    if (!unk || *unk >= model_.pieces.size()) {
      json_.fail_here(
          unk ? fmt::format("unk_id is {}, the vocabulary has {}", *unk, model_.pieces.size())
              : std::string("there is no unk_id"));
    }
    model_.unk_id = static_cast<std::int32_t>(*unk);
    model_.types.assign(model_.pieces.size(), PieceType::normal);
    model_.types[*unk] = PieceType::unknown;
  }

  void read_vocabulary(VocabularyLimits& limits) {
    if (json_.peek() == JsonReader::Kind::object) unsupported("a vocabulary that is", "an object");
    json_.open_array();
    while (json_.next_element()) {
      json_.open_array();
      if (!json_.next_element()) json_.fail_here("a piece without text");
      model_.pieces.emplace_back(json_.string());
      if (!json_.next_element()) json_.fail_here("a piece without score");
      model_.scores.push_back(json_.number());
      if (json_.next_element()) json_.fail_here("a piece of more than text and score");
      limits.add(model_.pieces.back(), model_.scores.back(), json_.file_offset());
    }
  }

  // Special tokens are in the vocabulary, among the added ones, or both.
  void check_ids() {
    const auto count = static_cast<std::int32_t>(model_.pieces.size());
    const auto find = [&](std::string_view name) {
      for (const AddedToken& t : model_.added) {
        if (t.text == name) return t.id;
      }
      for (std::int32_t i = 0; i < count; ++i) {
        if (model_.pieces[to_size(i)] == name) return i;
      }
      return -1;
    };
    model_.eos_id = find("</s>");
    model_.pad_id = find("<pad>");
    if (model_.eos_id < 0) refuse("there is no token \"</s>\"");
    for (const AddedToken& t : model_.added) {
      // Above the vocabulary ids go on; a gap as wide as this is none that a model could have.
      if (t.id < count + static_cast<std::int32_t>(kMaxAdded)) {
        if (t.id < count) model_.types[to_size(t.id)] = PieceType::control;
        continue;
      }
      refuse(fmt::format("added token \"{}\" has the id {}, the vocabulary has {}",
                         printable(t.text), t.id, count));
    }
    model_.types[to_size(model_.unk_id)] = PieceType::unknown;
  }

  std::string path_;
  JsonReader json_;
  TokenizerModel model_;
};

}  // namespace

TokenizerModel read_tokenizer_json(const std::string& path) {
  const std::string text = read_tokenizer_file(path);
  return TokenizerJson(text, path).read();
}

}  // namespace ballast::data
