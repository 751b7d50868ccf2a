#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

namespace ballast::ref {

struct StableAdamWState {
  std::vector<double> p, m, v;
};

// By the size of the gradient against its second moment v of the same step.
inline double stable_rate(const std::vector<double>& g, const std::vector<double>& v, double lr,
                          double eps) {
  double sum = 0;
  for (std::size_t i = 0; i < g.size(); ++i) sum += g[i] * g[i] / std::max(v[i], eps * eps);
  return lr / std::max(1.0, std::sqrt(sum / static_cast<double>(g.size())));
}

// Step k = 1, 2, ... of optimi's StableAdamW. Returns the rate it took.
inline double stable_adamw(StableAdamWState& s, const std::vector<double>& g, double lr,
                           double beta1, double beta2, double eps, double weight_decay, int k) {
  const auto corrected = [k](double beta) {
    return (std::pow(beta, k) - beta) / (std::pow(beta, k) - 1);
  };
  const double b1 = corrected(beta1), b2 = corrected(beta2);
  for (std::size_t i = 0; i < g.size(); ++i) {
    s.m[i] = b1 * s.m[i] + (1 - b1) * g[i];
    s.v[i] = b2 * s.v[i] + (1 - b2) * g[i] * g[i];
  }
  const double rate = stable_rate(g, s.v, lr, eps);
  for (std::size_t i = 0; i < g.size(); ++i) {
    s.p[i] = s.p[i] * (1 - rate * weight_decay) - rate * s.m[i] / (std::sqrt(s.v[i]) + eps);
  }
  return rate;
}

}  // namespace ballast::ref
