#pragma once

#include <string>
#include <string_view>

namespace ballast {

// Appends text in quotes as JSON. Control bytes are escaped; bytes that are not UTF-8 become
// U+FFFD, so that the result is JSON whatever a file name contained.
void put_json_text(std::string& out, std::string_view text);

// Appends the shortest decimal that reads back to the same bits; null for NaN and infinities.
void put_json_number(std::string& out, double value);

// The length of the UTF-8 sequence at the start of text, or 0 when there is none (overlong forms
// and surrogates included).
std::size_t utf8_length(std::string_view text);

}  // namespace ballast
