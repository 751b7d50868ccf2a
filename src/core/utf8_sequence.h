#pragma once

#include <cstddef>
#include <string_view>

namespace ballast {

// The length of the UTF-8 sequence at the start of `text`, which is not empty; 0 when it is not
// well formed (overlong forms, surrogates and code points above U+10FFFF are not).
std::size_t utf8_sequence_length(std::string_view text);

// The code point of a well-formed sequence.
char32_t utf8_code_point(std::string_view sequence);

}  // namespace ballast
