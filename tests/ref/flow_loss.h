#pragma once

#include <cmath>
#include <cstddef>
#include <vector>

#include "ops/flow_loss.h"

namespace ballast::ref {

// rho, branch by branch as its definition stands.
inline double loss_of(const ops::LossFunction& f, double e) {
  const double size = std::abs(e);
  switch (f.kind) {
    case ops::LossKind::mse:
      return e * e;
    case ops::LossKind::huber:
      return size <= f.delta ? e * e / 2 : f.delta * (size - f.delta / 2);
    case ops::LossKind::smooth_l1:
      return size < f.delta ? e * e / (2 * f.delta) : size - f.delta / 2;
  }
  return 0;
}

inline double loss_slope(const ops::LossFunction& f, double e) {
  const double sign = e < 0 ? -1 : 1;
  switch (f.kind) {
    case ops::LossKind::mse:
      return 2 * e;
    case ops::LossKind::huber:
      return std::abs(e) <= f.delta ? e : sign * f.delta;
    case ops::LossKind::smooth_l1:
      return std::abs(e) < f.delta ? e / f.delta : sign;
  }
  return 0;
}

struct FlowLoss {
  ops::LossFunction rho = {};
  double weight = 1;
  std::vector<double> mask = {};  // repeats; empty: ones

  double mask_at(std::size_t i) const { return mask.empty() ? 1 : mask[i % mask.size()]; }
};

inline double flow_loss(const FlowLoss& f, const std::vector<double>& pred,
                        const std::vector<double>& target) {
  double sum = 0;
  for (std::size_t i = 0; i < pred.size(); ++i) {
    sum += f.mask_at(i) * loss_of(f.rho, pred[i] - target[i]);
  }
  return f.weight * sum;
}

inline std::vector<double> flow_loss_backward(const FlowLoss& f, const std::vector<double>& pred,
                                              const std::vector<double>& target) {
  std::vector<double> dpred(pred.size());
  for (std::size_t i = 0; i < pred.size(); ++i) {
    dpred[i] = f.weight * f.mask_at(i) * loss_slope(f.rho, pred[i] - target[i]);
  }
  return dpred;
}

}  // namespace ballast::ref
