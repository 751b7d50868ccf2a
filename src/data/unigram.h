#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "data/piece_trie.h"
#include "data/tokenizer_model.h"

namespace ballast::data {

// The segmentation of a text into pieces with the greatest sum of scores:
//   best[0] = 0,  best[e] = max over pieces text[s, e) of best[s] + score(piece),
// where a character that is no piece by itself counts as unknown, 10 below the lowest score. Of
// equal sums the one found first stays. Sums of a spiece.model are kept in f32 and those of a
// tokenizer.json in f64, as the libraries do that belong to them: near ties depend on it.
class Unigram {
 public:
  explicit Unigram(const TokenizerModel& model);

  // Appends the ids of `text`. Runs of unknown characters are one <unk>, or their byte pieces where
  // the model has byte fallback.
  void encode(std::string_view text, std::vector<std::int32_t>& ids) const;

 private:
  template <class Sum>
  void encode_as(std::string_view text, std::vector<std::int32_t>& ids) const;
  void append_unknown(std::string_view run, std::vector<std::int32_t>& ids) const;

  PieceTrie trie_;
  std::vector<float> scores_;     // of a spiece.model
  std::vector<double> scores64_;  // of a tokenizer.json
  std::vector<bool> unused_;      // in the trie, but never chosen
  std::vector<bool> user_defined_;
  std::vector<std::int32_t> byte_ids_;  // 256 of them with byte fallback, else none
  double min_score_ = 0, max_score_ = 0;
  std::int32_t unk_id_ = 0;
  bool sentencepiece_ = true;
};

}  // namespace ballast::data
