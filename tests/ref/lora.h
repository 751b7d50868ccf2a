#pragma once

#include <cstddef>
#include <vector>

#include "tests/ref/dropout.h"
#include "tests/ref/linear.h"

namespace ballast::ref {

struct LoraDims {
  std::size_t rows, inputs, outputs, rank;
};
struct LoraDropout {
  double probability = 0;
  RandomSource source = {};
  std::vector<double> hidden = {};  // factors of u's elements; none: all stay
};

inline void drop_hidden(const LoraDropout& drop, std::vector<double>& u) {
  for (std::size_t i = 0; i < drop.hidden.size(); ++i) u[i] *= drop.hidden[i];
}

// scale * (hidden (dropout(x) A^T)) B^T
inline std::vector<double> lora(const LoraDims& d, const std::vector<double>& x,
                                const std::vector<double>& a, const std::vector<double>& b,
                                double scale, const LoraDropout& drop = {}) {
  const std::vector<double> kept = dropout(x, drop.probability, drop.source);
  std::vector<double> u = linear({d.rows, d.inputs, d.rank}, kept, a, {});
  drop_hidden(drop, u);
  std::vector<double> y = linear({d.rows, d.rank, d.outputs}, u, b, {});
  for (double& v : y) v *= scale;
  return y;
}

struct LoraGradients {
  std::vector<double> dx, da, db;
};

inline LoraGradients lora_backward(const LoraDims& d, const std::vector<double>& x,
                                   const std::vector<double>& a, const std::vector<double>& b,
                                   double scale, std::vector<double> dy,
                                   const LoraDropout& drop = {}) {
  for (double& v : dy) v *= scale;
  const std::vector<double> kept = dropout(x, drop.probability, drop.source);
  std::vector<double> u = linear({d.rows, d.inputs, d.rank}, kept, a, {});
  std::vector<double> du = linear_dx({d.rows, d.rank, d.outputs}, dy, b);
  drop_hidden(drop, u);
  drop_hidden(drop, du);
  const std::vector<double> dkept = linear_dx({d.rows, d.inputs, d.rank}, du, a);
  return {.dx = dropout(dkept, drop.probability, drop.source),
          .da = linear_dw({d.rows, d.inputs, d.rank}, kept, du).dw,
          .db = linear_dw({d.rows, d.rank, d.outputs}, u, dy).dw};
}

}  // namespace ballast::ref
