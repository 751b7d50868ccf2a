#pragma once

#include <cmath>
#include <numbers>
#include <vector>

#include "core/random.h"

namespace ballast::ref {

// Box-Muller over the words of each pair, as core/random.h defines it.
inline std::vector<double> noise(const RandomSource& source, std::uint64_t first, std::size_t n) {
  std::vector<double> out(n);
  for (std::size_t k = 0; k < n; ++k) {
    const std::uint64_t i = first + k, even = i / 2 * 2;
    const double u = (source.word(even) + 1.0) * 0x1p-32;
    const double angle = 2 * std::numbers::pi * (source.word(even + 1) * 0x1p-32);
    const double r = std::sqrt(-2 * std::log(u));
    out[k] = i % 2 == 0 ? r * std::cos(angle) : r * std::sin(angle);
  }
  return out;
}

}  // namespace ballast::ref
