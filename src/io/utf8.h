#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace ballast {

// The offset of the first byte that does not belong to well-formed UTF-8 (overlong forms,
// surrogates and code points above U+10FFFF are not); nullopt when all of it is.
std::optional<std::size_t> first_invalid_utf8(std::string_view text);

void append_utf8(std::string& out, char32_t code_point);

}  // namespace ballast
