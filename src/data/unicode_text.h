#pragma once

#include <string>
#include <string_view>

namespace ballast::data {

struct Character {
  char32_t code = 0;       // U+FFFD for a malformed byte
  std::size_t length = 0;  // in bytes; 1 for a malformed one
};
Character character_at(std::string_view text);  // the first; text is not empty

// The text with every malformed byte replaced by U+FFFD.
std::string well_formed(std::string_view text);

// Code points; surrogates that were encoded one by one are kept as such, other malformed bytes are
// U+FFFD.
std::u32string decode_utf8(std::string_view text);
std::string encode_utf8(std::u32string_view text);  // surrogates become U+FFFD

bool is_white_space(char32_t c);  // Unicode's White_Space

// Bytes of the extended grapheme cluster the text begins with, exact for those shorter than six
// bytes; a longer one may come in parts of which none but the first is shorter than that and no
// part joins characters that belong to different clusters. Text is well formed and not empty.
std::size_t cluster_length(std::string_view text);

// Unicode Normalization Form C.
std::u32string canonical_composition(std::u32string_view text);

}  // namespace ballast::data
