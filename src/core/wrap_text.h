#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace ballast {

// Columns of text that is not for a terminal.
inline constexpr std::size_t kPlainColumns = 100;

// Characters, not bytes: continuation bytes of UTF-8 take no column.
std::size_t width_of(std::string_view text);

// first + text, broken at spaces so that no line is wider than columns; lines after the first begin
// with `indent` spaces. A word that is wider than a line stays whole. columns 0: not broken.
std::string wrapped(std::string_view first, std::string_view text, std::size_t columns,
                    std::size_t indent);

}  // namespace ballast
