#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/piece_trie.h"
#include "data/text_normalizer.h"
#include "data/tokenizer_model.h"
#include "data/unigram.h"

namespace ballast::data {

// Text to ids and back with the unigram vocabulary of a T5, FLAN-T5 or UMT5 model.
//
// A tokenizer.json is followed as the tokenizers library follows it, a spiece.model as
// SentencePiece does; the two differ in corner cases. Prompts of Wan go through clean_text() first.
// All functions may be called by several threads at once.
class Tokenizer {
 public:
  // A tokenizer.json, a spiece.model, or a folder with one of them (also in tokenizer/ or
  // google/umt5-xxl/ below it), or a safetensors file with a spiece.model inside; of a
  // tokenizer.json and a spiece.model the first is taken. Fails with ErrorCode::input
  // and a rule (tok.*, spm.*, charsmap), ErrorCode::io where the system refuses.
  static Tokenizer open(const std::string& path);
  Tokenizer(TokenizerModel model, std::string path);  // path is for messages

  const std::string& path() const { return path_; }
  // The pieces alone, no </s>.
  std::vector<std::int32_t> encode(std::string_view text) const;
  // At most max_length - 1 pieces, then </s>. max_length is at least 1.
  std::vector<std::int32_t> encode(std::string_view text, std::size_t max_length) const;
  // Special ids (padding, </s>, sentinels) are left out, so are ids of no piece; of a spiece.model
  // <unk> is " \u2047 ", of a tokenizer.json nothing.
  std::string decode(std::span<const std::int32_t> ids) const;

  std::int32_t vocab_size() const { return vocab_size_; }  // one more than the largest id
  std::int32_t unk_id() const { return model_.unk_id; }
  std::int32_t eos_id() const { return model_.eos_id; }
  std::int32_t pad_id() const { return model_.pad_id; }  // -1: none
  // The id of a piece or an added token such as "<extra_id_0>".
  std::optional<std::int32_t> find(std::string_view token) const;

 private:
  void encode_span(std::string_view span, bool first, std::vector<std::int32_t>& ids) const;
  void encode_words(std::string_view text, bool first, std::vector<std::int32_t>& ids) const;
  void encode_metaspace(std::string_view text, bool first, std::vector<std::int32_t>& ids) const;
  const AddedToken* added_at(std::string_view text) const;

  std::string path_;
  TokenizerModel model_;
  Unigram unigram_;
  TextNormalizer normalizer_;
  PieceTrie added_;  // values are places in model_.added
  std::int32_t vocab_size_ = 0;
};

}  // namespace ballast::data
