#pragma once

#include <cstddef>
#include <vector>

namespace ballast::support {

// The gradient of f at x by central differences, in double: right to about 1e-9 for functions of
// size 1, exact up to rounding for linear and quadratic ones.
template <class F>
std::vector<double> numeric_gradient(F&& f, std::vector<double> x, double h = 1e-3) {
  std::vector<double> gradient(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double at = x[i];
    x[i] = at + h;
    const double above = f(x);
    x[i] = at - h;
    const double below = f(x);
    x[i] = at;
    gradient[i] = (above - below) / (2 * h);
  }
  return gradient;
}

inline double dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b.at(i);
  return sum;
}

}  // namespace ballast::support
