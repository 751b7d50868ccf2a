#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "data/character_map.h"
#include "data/piece_trie.h"
#include "data/tokenizer_model.h"

namespace ballast::data {

// What happens to a text before it is cut into pieces.
class TextNormalizer {
 public:
  TextNormalizer(const TokenizerModel& model, const std::string& path);

  // As SentencePiece does: the longest rule at each place, spaces at the ends dropped and runs made
  // one, U+2581 for each and in front. A span that is `continued` follows an added token: it gets
  // no prefix and keeps its first space.
  void sentencepiece(std::string_view text, bool continued, std::string& out) const;

  // The steps of a tokenizer.json, in order. `text` is well formed.
  std::string steps(std::string_view text) const;

 private:
  struct Prefix {
    std::string_view by;
    std::size_t length;
  };
  Prefix prefix(std::string_view text) const;

  CharacterMap map_;
  std::optional<PieceTrie> user_defined_;  // stay as they are
  std::vector<TextStep> steps_;
  bool dummy_prefix_, remove_extra_, escape_, suffix_;
};

}  // namespace ballast::data
