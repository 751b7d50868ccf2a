#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "core/to_size.h"

namespace ballast::ref {

inline std::vector<double> softmax(const std::vector<double>& x, std::int64_t width, double scale) {
  std::vector<double> y(x.size());
  const auto n = to_size(width);
  for (std::size_t r = 0; r + n <= x.size() && n > 0; r += n) {
    double most = scale * x[r], sum = 0;
    for (std::size_t i = 0; i < n; ++i) most = std::max(most, scale * x[r + i]);
    for (std::size_t i = 0; i < n; ++i) sum += y[r + i] = std::exp(scale * x[r + i] - most);
    for (std::size_t i = 0; i < n; ++i) y[r + i] /= sum;
  }
  return y;
}

inline std::vector<double> softmax_backward(const std::vector<double>& y,
                                            const std::vector<double>& dy, std::int64_t width,
                                            double scale) {
  std::vector<double> dx(y.size());
  const auto n = to_size(width);
  for (std::size_t r = 0; r + n <= y.size() && n > 0; r += n) {
    double along = 0;
    for (std::size_t i = 0; i < n; ++i) along += y[r + i] * dy[r + i];
    for (std::size_t i = 0; i < n; ++i) dx[r + i] = scale * y[r + i] * (dy[r + i] - along);
  }
  return dx;
}

}  // namespace ballast::ref
