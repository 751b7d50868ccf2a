#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
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

// ||scale B A|| of a [rank, k] and b [n, rank], element by element
inline double product_norm(const std::vector<double>& a, const std::vector<double>& b,
                           std::size_t rank, double scale) {
  const std::size_t k = a.size() / rank, n = b.size() / rank;
  double sum = 0;
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j < k; ++j) {
      double x = 0;
      for (std::size_t r = 0; r < rank; ++r) x += b[i * rank + r] * a[r * k + j];
      sum += x * x;
    }
  }
  return scale * std::sqrt(sum);
}

// What both factors are multiplied with
inline double limit_factor(double norm, double max_norm) {
  return norm > max_norm ? std::sqrt(max_norm / norm) : 1;
}

}  // namespace ballast::ref
