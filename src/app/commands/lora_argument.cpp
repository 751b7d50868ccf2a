#include "app/commands/lora_argument.h"

#include <charconv>
#include <cmath>

#include "core/error.h"

namespace ballast {

std::pair<std::string, double> path_and_strength(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon + 1 == text.size()) return {text, 1};
  const char *begin = text.data() + colon + 1, *end = text.data() + text.size();
  double strength = 0;
  const auto [at, error] = std::from_chars(begin, end, strength);
  if (error != std::errc() || at != end) return {text, 1};
  if (!std::isfinite(strength)) {
    fail(ErrorCode::usage, "{}: the strength is not finite", text);
  }
  return {text.substr(0, colon), strength};
}

}  // namespace ballast
