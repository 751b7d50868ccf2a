#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

namespace ballast::ref {

inline double sum_squares(const std::vector<double>& x) {
  double sum = 0;
  for (const double value : x) sum += value * value;
  return sum;
}

// min(1, max_norm / (norm + 1e-6)), 1 without a limit
inline double clip_factor(double sum, double max_norm) {
  return max_norm <= 0 ? 1 : std::min(1.0, max_norm / (std::sqrt(sum) + 1e-6));
}

}  // namespace ballast::ref
