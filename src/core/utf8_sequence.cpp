#include "core/utf8_sequence.h"

namespace ballast {

// Unicode 15, table 3-7: only the second byte has ranges narrower than 80..BF.
std::size_t utf8_sequence_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const auto is = [&](std::size_t i, unsigned low, unsigned high) {
    return i < text.size() && byte(i) >= low && byte(i) <= high;
  };
  const auto tail = [&](std::size_t i) { return is(i, 0x80, 0xbf); };
  const unsigned lead = byte(0);
  if (lead < 0x80) return 1;
  if (lead >= 0xc2 && lead <= 0xdf) return tail(1) ? 2 : 0;
  if (lead >= 0xe0 && lead <= 0xef) {
    const bool second = is(1, lead == 0xe0 ? 0xa0 : 0x80, lead == 0xed ? 0x9f : 0xbf);
    return second && tail(2) ? 3 : 0;
  }
  if (lead >= 0xf0 && lead <= 0xf4) {
    const bool second = is(1, lead == 0xf0 ? 0x90 : 0x80, lead == 0xf4 ? 0x8f : 0xbf);
    return second && tail(2) && tail(3) ? 4 : 0;
  }
  return 0;
}

char32_t utf8_code_point(std::string_view sequence) {
  const auto byte = [&](std::size_t i) {
    return static_cast<char32_t>(static_cast<unsigned char>(sequence[i]));
  };
  if (sequence.size() == 1) return byte(0);
  char32_t c = byte(0) & (0x7fu >> sequence.size());
  for (std::size_t i = 1; i < sequence.size(); ++i) c = c << 6 | (byte(i) & 0x3f);
  return c;
}

}  // namespace ballast
