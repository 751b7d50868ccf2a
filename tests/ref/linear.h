#pragma once

#include <cstddef>
#include <vector>

namespace ballast::ref {

struct LinearDims {
  std::size_t rows, inputs, outputs;
};

// y = x W^T + bias; an empty bias is none.
inline std::vector<double> linear(const LinearDims& d, const std::vector<double>& x,
                                  const std::vector<double>& w, const std::vector<double>& bias) {
  std::vector<double> y(d.rows * d.outputs);
  for (std::size_t r = 0; r < d.rows; ++r) {
    for (std::size_t n = 0; n < d.outputs; ++n) {
      double sum = bias.empty() ? 0 : bias[n];
      for (std::size_t k = 0; k < d.inputs; ++k) sum += x[r * d.inputs + k] * w[n * d.inputs + k];
      y[r * d.outputs + n] = sum;
    }
  }
  return y;
}

// dx = dy W
inline std::vector<double> linear_dx(const LinearDims& d, const std::vector<double>& dy,
                                     const std::vector<double>& w) {
  std::vector<double> dx(d.rows * d.inputs);
  for (std::size_t r = 0; r < d.rows; ++r) {
    for (std::size_t n = 0; n < d.outputs; ++n) {
      for (std::size_t k = 0; k < d.inputs; ++k) {
        dx[r * d.inputs + k] += dy[r * d.outputs + n] * w[n * d.inputs + k];
      }
    }
  }
  return dx;
}

struct LinearGrads {
  std::vector<double> dw, dbias;
};

// dw = dy^T x, dbias = column sums of dy
inline LinearGrads linear_dw(const LinearDims& d, const std::vector<double>& x,
                             const std::vector<double>& dy) {
  LinearGrads g{std::vector<double>(d.outputs * d.inputs), std::vector<double>(d.outputs)};
  for (std::size_t r = 0; r < d.rows; ++r) {
    for (std::size_t n = 0; n < d.outputs; ++n) {
      g.dbias[n] += dy[r * d.outputs + n];
      for (std::size_t k = 0; k < d.inputs; ++k) {
        g.dw[n * d.inputs + k] += dy[r * d.outputs + n] * x[r * d.inputs + k];
      }
    }
  }
  return g;
}

}  // namespace ballast::ref
