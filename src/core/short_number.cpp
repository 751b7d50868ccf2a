#include "core/short_number.h"

#include <fmt/format.h>

#include <array>
#include <utility>

namespace ballast {
namespace {

std::string three_digits(double v) {
  return fmt::format("{:.{}f}", v, v < 9.995 ? 2 : v < 99.95 ? 1 : 0);
}

}  // namespace

std::string short_count(std::int64_t n) {
  constexpr std::array<std::pair<double, const char*>, 3> kUnits = {
      {{1e9, "B"}, {1e6, "M"}, {1e3, "K"}}};
  const auto value = static_cast<double>(n);
  for (const auto& [factor, unit] : kUnits) {
    // 999,999 is 1.00 M, not 1000 K.
    if (value >= 0.9995 * factor && n >= 1000) {
      return fmt::format("{} {}", three_digits(value / factor), unit);
    }
  }
  return fmt::format("{}", n);
}

std::string flop_rate(double per_second) {
  constexpr std::array<std::pair<double, const char*>, 3> kUnits = {
      {{1e12, "TFLOP/s"}, {1e9, "GFLOP/s"}, {1e6, "MFLOP/s"}}};
  for (const auto& [factor, unit] : kUnits) {
    if (per_second >= 0.9995 * factor) {
      return fmt::format("{} {}", three_digits(per_second / factor), unit);
    }
  }
  return fmt::format("{:.0f} FLOP/s", per_second);
}

}  // namespace ballast
