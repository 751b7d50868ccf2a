#include "core/error.h"

#include <cstring>

namespace ballast {

void fail(ErrorCode code, std::string message, std::vector<Advice> advice) {
  throw Error(code, std::move(message), std::move(advice));
}

void detail::fail_check(Where where, std::string message) {
  const char* file = std::strstr(where.file, "src/");
  throw Error(ErrorCode::internal,
              fmt::format("{} ({}:{})", message, file ? file : where.file, where.line));
}

std::string printable(std::string_view text, std::size_t most) {
  std::string out;
  for (const char c : text.substr(0, most)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f || byte >= 0x80 || byte == '"' || byte == '\\') {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  if (text.size() > most) out += fmt::format("... ({} bytes)", text.size());
  return out;
}

}  // namespace ballast
