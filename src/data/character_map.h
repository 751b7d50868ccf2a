#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ballast::data {

// SentencePiece's precompiled normalisation rules: a double-array trie of byte strings, and what
// they are replaced by. Texts are UTF-8; every malformed byte becomes U+FFFD.
class CharacterMap {
 public:
  struct Rule {
    std::size_t length = 0;  // bytes of text it replaces; 0: there is none
    std::string_view by;
  };

  CharacterMap() = default;  // no rules
  // u32 size of the trie, the trie, the replacements with a NUL behind each. What is wrong with it
  // is ErrorCode::input, rule "charsmap"; `path` is for messages.
  CharacterMap(std::string_view blob, const std::string& path);

  bool empty() const { return units_.empty(); }
  Rule longest(std::string_view text) const { return find(text, true); }
  Rule shortest(std::string_view text) const { return find(text, false); }

  // As the tokenizers library applies it: clusters of characters shorter than six bytes are
  // replaced whole by the shortest rule that matches their beginning, else character by character.
  void apply_to_clusters(std::string_view text, std::string& out) const;

 private:
  Rule find(std::string_view text, bool longest) const;
  std::string_view replacement(std::uint32_t offset) const;

  std::vector<std::uint32_t> units_;
  std::string pool_;
};

}  // namespace ballast::data
