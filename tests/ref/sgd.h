#pragma once

#include <cstddef>
#include <vector>

namespace ballast::ref {

inline void sgd(std::vector<double>& p, std::vector<double>& momentum_sum,
                const std::vector<double>& g, double lr, double momentum, double weight_decay) {
  for (std::size_t i = 0; i < p.size(); ++i) {
    momentum_sum[i] = momentum * momentum_sum[i] + g[i] + weight_decay * p[i];
    p[i] -= lr * momentum_sum[i];
  }
}

}  // namespace ballast::ref
