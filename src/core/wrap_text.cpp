#include "core/wrap_text.h"

#include <algorithm>

#include "core/to_size.h"

namespace ballast {

std::size_t width_of(std::string_view text) {
  return to_size(std::ranges::count_if(
      text, [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

std::string wrapped(std::string_view first, std::string_view text, std::size_t columns,
                    std::size_t indent) {
  std::string out(first);
  std::size_t column = width_of(first);
  bool at_start = true;  // of a line: no space before the next word
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(' '), text.size());
    const std::string_view word = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (word.empty()) continue;
    const std::size_t width = width_of(word) + (at_start ? 0 : 1);
    if (columns > 0 && column > indent && column + width > columns) {
      while (out.ends_with(' ')) out.pop_back();
      out += '\n';
      out.append(indent, ' ');
      column = indent;
      at_start = true;
    }
    if (!at_start) out += ' ', ++column;
    out += word;
    column += width_of(word);
    at_start = false;
  }
  return out;
}

}  // namespace ballast
