#include "core/error.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>

#include "core/utf8_sequence.h"

namespace ballast {

void fail(ErrorCode code, std::string message, std::vector<Advice> advice) {
  throw Error(code, std::move(message), std::move(advice));
}

void detail::fail_check(Where where, std::string message) {
  const char* file = std::strstr(where.file, "src/");
  throw Error(ErrorCode::internal,
              fmt::format("{} ({}:{})", message, file ? file : where.file, where.line));
}

namespace {

// What a terminal obeys or does not show: control characters, line separators, direction marks,
// characters without width, tags.
bool is_hidden(char32_t c) {
  struct Range {
    char32_t first, last;
  };
  constexpr std::array<Range, 12> kHidden = {{{0x00, 0x1f},
                                              {0x7f, 0x9f},
                                              {0xad, 0xad},
                                              {0x61c, 0x61c},
                                              {0x180e, 0x180e},
                                              {0x200b, 0x200f},
                                              {0x2028, 0x202e},
                                              {0x2060, 0x206f},
                                              {0xfeff, 0xfeff},
                                              {0xfff9, 0xfffb},
                                              {0xe0000, 0xe007f},
                                              {0x1d173, 0x1d17a}}};
  return std::ranges::any_of(kHidden, [c](const Range& r) { return c >= r.first && c <= r.last; });
}

}  // namespace

std::string printable(std::string_view text, std::size_t most) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const std::string_view rest = text.substr(at);
    const std::size_t length = utf8_sequence_length(rest);
    if (at + std::max<std::size_t>(length, 1) > most) {
      out += fmt::format("... ({} bytes)", text.size());
      break;
    }
    const char32_t c = length == 0 ? 0 : utf8_code_point(rest.substr(0, length));
    if (length == 0 || (c < 0x80 && is_hidden(c))) {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(rest[0]));
    } else if (is_hidden(c)) {
      out += fmt::format("\\u{:04x}", static_cast<std::uint32_t>(c));
    } else {
      out += rest.substr(0, length);
    }
    at += std::max<std::size_t>(length, 1);
  }
  return out;
}

}  // namespace ballast
