#pragma once

#include <cmath>
#include <cstddef>
#include <vector>

#include "tests/ref/update_rounding.h"

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

struct OptimiState {
  std::vector<double> p, m, v, c;
};

// optimi's form; with t = bf16 everything is kept in bf16 and p is summed as Kahan does.
inline void adamw_optimi(OptimiState& s, const std::vector<double>& g, double lr, double beta1,
                         double beta2, double eps, double weight_decay, int k, DType t) {
  const auto corrected = [k](double beta) {
    return (std::pow(beta, k) - beta) / (std::pow(beta, k) - 1);
  };
  const double b1 = corrected(beta1), b2 = corrected(beta2);
  for (std::size_t i = 0; i < s.p.size(); ++i) {
    const double base = s.p[i] * (1 - lr * weight_decay);
    const double m = s.m[i] + (1 - b1) * (g[i] - s.m[i]);
    const double v = b2 * s.v[i] + (1 - b2) * g[i] * g[i];
    const double change = -lr * m / (std::sqrt(v) + eps);
    s.p[i] = t == DType::bf16 ? kahan(base, change, s.c[i], t) : base + change;
    s.m[i] = nearest(m, t);
    s.v[i] = nearest(v, t);
  }
}

}  // namespace ballast::ref
