#pragma once

#include <cmath>
#include <cstddef>
#include <vector>

namespace ballast::ref {

struct AdamWState {
  std::vector<double> p, m, v;
};

// Step k = 1, 2, ... of Adam with decoupled weight decay.
inline void adamw(AdamWState& s, const std::vector<double>& g, double lr, double beta1,
                  double beta2, double eps, double weight_decay, int k) {
  for (std::size_t i = 0; i < s.p.size(); ++i) {
    s.p[i] *= 1 - lr * weight_decay;
    s.m[i] = beta1 * s.m[i] + (1 - beta1) * g[i];
    s.v[i] = beta2 * s.v[i] + (1 - beta2) * g[i] * g[i];
    const double m = s.m[i] / (1 - std::pow(beta1, k)), v = s.v[i] / (1 - std::pow(beta2, k));
    s.p[i] -= lr * m / (std::sqrt(v) + eps);
  }
}

}  // namespace ballast::ref
