#pragma once

#include <cmath>
#include <cstddef>
#include <vector>

namespace ballast::ref {

// [T, width]: cos(t f_i) then sin(t f_i), f_i = exp(-ln(10000) i / (width / 2)).
inline std::vector<double> sinusoid(const std::vector<double>& t, std::size_t width) {
  const std::size_t half = width / 2;
  std::vector<double> y(t.size() * width);
  for (std::size_t r = 0; r < t.size(); ++r) {
    for (std::size_t i = 0; i < half; ++i) {
      const double f =
          std::exp(-std::log(10000.0) * static_cast<double>(i) / static_cast<double>(half));
      y[r * width + i] = std::cos(t[r] * f);
      y[r * width + half + i] = std::sin(t[r] * f);
    }
  }
  return y;
}

}  // namespace ballast::ref
