#pragma once

#include <cstddef>
#include <vector>

namespace ballast::ref {

// weight * sum((pred - target)^2)
inline double mse(const std::vector<double>& pred, const std::vector<double>& target,
                  double weight) {
  double sum = 0;
  for (std::size_t i = 0; i < pred.size(); ++i) {
    sum += (pred[i] - target[i]) * (pred[i] - target[i]);
  }
  return weight * sum;
}

inline std::vector<double> mse_backward(const std::vector<double>& pred,
                                        const std::vector<double>& target, double weight) {
  std::vector<double> dpred(pred.size());
  for (std::size_t i = 0; i < pred.size(); ++i) dpred[i] = 2 * weight * (pred[i] - target[i]);
  return dpred;
}

}  // namespace ballast::ref
