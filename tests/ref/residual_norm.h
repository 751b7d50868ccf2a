#pragma once

#include "tests/ref/gated_residual.h"
#include "tests/ref/layer_norm.h"

namespace ballast::ref {

struct ResidualNorm {
  std::vector<double> out;
  LayerNorm norm;
};

// out = x + y gate[index], and the norm of out. The gate uses the index of the tables.
inline ResidualNorm residual_norm(const std::vector<double>& x, const std::vector<double>& y,
                                  std::size_t width, const std::vector<double>& gate,
                                  const NormTables& t, double eps) {
  ResidualNorm r;
  r.out = gated_residual(x, y, width, gate, t.index);
  r.norm = layer_norm(r.out, width, t, eps);
  return r;
}

}  // namespace ballast::ref
