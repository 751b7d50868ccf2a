#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "core/convert.h"
#include "core/to_size.h"
#include "tests/ref/number_formats.h"

namespace ballast::ref {

struct Quantized {
  std::vector<double> q;  // [N, K]
  std::vector<float> scale;
};

// scale = max(max|w| / MAX, 1e-8); q = w / scale on the grid of the dtype. The quotients are those
// of f32, as the definition says; everything else is double.
inline Quantized quantize_rows(const std::vector<float>& w, std::int64_t rows, std::int64_t columns,
                               DType dtype, bool per_row) {
  const float most = dtype == DType::i8 ? 127.0f : static_cast<float>(format_of(dtype).largest);
  Quantized out;
  out.q.resize(w.size());
  const std::int64_t groups = per_row ? rows : 1;
  const std::int64_t size = per_row ? columns : rows * columns;
  for (std::int64_t g = 0; g < groups; ++g) {
    float top = 0;
    for (std::int64_t i = g * size; i < (g + 1) * size; ++i) {
      top = std::max(top, std::fabs(w[to_size(i)]));
    }
    const float scale = std::max(top / most, 1e-8f);
    out.scale.push_back(scale);
    for (std::int64_t i = g * size; i < (g + 1) * size; ++i) {
      const double x = static_cast<double>(w[to_size(i)] / scale);
      out.q[to_size(i)] = dtype == DType::i8 ? std::clamp(std::nearbyint(x), -127.0, 127.0)
                                             : round(x, dtype, Rounding::saturating);
    }
  }
  return out;
}

// w' = q * scale
inline std::vector<double> dequantize(const Quantized& x, std::int64_t columns) {
  std::vector<double> w(x.q.size());
  for (std::size_t i = 0; i < w.size(); ++i) {
    const std::size_t group = x.scale.size() == 1 ? 0 : i / to_size(columns);
    w[i] = x.q[i] * static_cast<double>(x.scale[group]);
  }
  return w;
}

}  // namespace ballast::ref
