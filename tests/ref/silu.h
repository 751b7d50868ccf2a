#pragma once

#include <cmath>

namespace ballast::ref {

// x sigmoid(x).
inline double silu(double x) { return x / (1 + std::exp(-x)); }

inline double silu_slope(double x) {
  const double s = 1 / (1 + std::exp(-x));
  return s * (1 + x * (1 - s));
}

}  // namespace ballast::ref
