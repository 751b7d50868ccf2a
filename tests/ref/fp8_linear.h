#pragma once

#include <cstdint>
#include <vector>

#include "tests/ref/linear.h"
#include "tests/ref/quantize_rows.h"

namespace ballast::ref {

// y = q(x) W^T + bias, where q(x) is x as f8_e4m3 with a scale per row and w holds the weights that
// the codes and their scales stand for. There are no finite differences to prove it by: the
// rounding is a step function, and products and rounding are proven by their own references.
inline std::vector<double> fp8_linear(const LinearDims& d, const std::vector<float>& x,
                                      const std::vector<double>& w,
                                      const std::vector<double>& bias) {
  const Quantized q = quantize_rows(x, static_cast<std::int64_t>(d.rows),
                                    static_cast<std::int64_t>(d.inputs), DType::f8_e4m3, true);
  return linear(d, dequantize(q, static_cast<std::int64_t>(d.inputs)), w, bias);
}

}  // namespace ballast::ref
