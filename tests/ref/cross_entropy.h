#pragma once

#include <cmath>
#include <cstddef>
#include <span>
#include <vector>

namespace ballast::ref {

inline double cross_entropy(std::span<const double> x, std::size_t label) {
  double most = x[0], sum = 0;
  for (const double v : x) most = std::fmax(most, v);
  for (const double v : x) sum += std::exp(v - most);
  return most + std::log(sum) - x[label];
}

// softmax(x) - [c = label]
inline std::vector<double> cross_entropy_dx(std::span<const double> x, std::size_t label) {
  const double lse = cross_entropy(x, label) + x[label];
  std::vector<double> dx;
  for (const double v : x) dx.push_back(std::exp(v - lse));
  dx[label] -= 1;
  return dx;
}

}  // namespace ballast::ref
