#pragma once

#include <cstddef>
#include <vector>

namespace ballast::ref {

// y + alpha * x
inline std::vector<double> add(const std::vector<double>& x, std::vector<double> y, double alpha) {
  for (std::size_t i = 0; i < y.size(); ++i) y[i] += alpha * x[i];
  return y;
}

}  // namespace ballast::ref
