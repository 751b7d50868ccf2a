#include "io/utf8.h"

#include <cstdint>
#include <cstring>

#include "core/utf8_sequence.h"

namespace ballast {

std::optional<std::size_t> first_invalid_utf8(std::string_view text) {
  std::size_t i = 0;
  while (i < text.size()) {
    std::uint64_t eight = 0;  // headers are nearly all ASCII: eight bytes at a time
    if (text.size() - i >= sizeof eight) {
      std::memcpy(&eight, text.data() + i, sizeof eight);
      if ((eight & 0x8080808080808080ull) == 0) {
        i += sizeof eight;
        continue;
      }
    }
    const std::size_t length = utf8_sequence_length(text.substr(i));
    if (length == 0) return i;
    i += length;
  }
  return std::nullopt;
}

void append_utf8(std::string& out, char32_t c) {
  const auto put = [&](char32_t byte) { out += static_cast<char>(byte); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xc0 | c >> 6), put(0x80 | (c & 0x3f));
  } else if (c < 0x10000) {
    put(0xe0 | c >> 12), put(0x80 | (c >> 6 & 0x3f)), put(0x80 | (c & 0x3f));
  } else {
    put(0xf0 | c >> 18), put(0x80 | (c >> 12 & 0x3f));
    put(0x80 | (c >> 6 & 0x3f)), put(0x80 | (c & 0x3f));
  }
}

}  // namespace ballast
