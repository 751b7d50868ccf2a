#pragma once

#include <cmath>

namespace ballast::ref {

constexpr double kGeluK = 0.79788456080286535588;  // sqrt(2 / pi)

// x (1 + tanh u) / 2, u = k (x + 0.044715 x^3).
inline double gelu(double x) {
  return 0.5 * x * (1 + std::tanh(kGeluK * (x + 0.044715 * x * x * x)));
}

inline double gelu_slope(double x) {
  const double q = std::tanh(kGeluK * (x + 0.044715 * x * x * x));
  return 0.5 * (1 + q) + 0.5 * x * (1 - q * q) * kGeluK * (1 + 0.134145 * x * x);
}

}  // namespace ballast::ref
