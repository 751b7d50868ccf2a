#pragma once

#include <cstdint>
#include <vector>

#include "core/to_size.h"

namespace ballast::ref {

// out = x + y gate[index]; an empty gate is 1, an empty index row 0.
inline std::vector<double> gated_residual(const std::vector<double>& x,
                                          const std::vector<double>& y, std::size_t width,
                                          const std::vector<double>& gate,
                                          const std::vector<std::int32_t>& index) {
  std::vector<double> out(x.size());
  for (std::size_t k = 0; k < x.size(); ++k) {
    const std::size_t t = index.empty() ? 0 : to_size(index[k / width]);
    out[k] = x[k] + y[k] * (gate.empty() ? 1 : gate[t * width + k % width]);
  }
  return out;
}

struct GatedResidualGrads {
  std::vector<double> dy, dgate;
};

// dy = dout gate[index]; dgate[t] = sum dout y over the rows with index t.
inline GatedResidualGrads gated_residual_backward(const std::vector<double>& dout,
                                                  const std::vector<double>& y, std::size_t width,
                                                  const std::vector<double>& gate,
                                                  const std::vector<std::int32_t>& index) {
  GatedResidualGrads out = {std::vector<double>(y.size()), std::vector<double>(gate.size())};
  for (std::size_t k = 0; k < y.size(); ++k) {
    const std::size_t t = index.empty() ? 0 : to_size(index[k / width]);
    out.dy[k] = dout[k] * (gate.empty() ? 1 : gate[t * width + k % width]);
    if (!gate.empty()) out.dgate[t * width + k % width] += dout[k] * y[k];
  }
  return out;
}

}  // namespace ballast::ref
