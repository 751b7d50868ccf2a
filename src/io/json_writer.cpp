#include "io/json_writer.h"

#include "core/error.h"

namespace ballast {

void append_json_string(std::string& out, std::string_view text) {
  constexpr std::string_view kMeant = "\"\\\b\f\n\r\t";
  constexpr std::string_view kNames = "\"\\bfnrt";
  out += '"';
  for (const char c : text) {
    const std::size_t i = kMeant.find(c);
    if (i != std::string_view::npos) {
      out += '\\';
      out += kNames[i];
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      out += c;
    }
  }
  out += '"';
}

}  // namespace ballast
