#pragma once

#include <cstdint>
#include <cstring>

#include "core/convert.h"
#include "core/tensor.h"

namespace ballast::ref {

// to = from, one element at a time by its coordinates.
inline void copy(const ConstTensorView& from, const TensorView& to) {
  const std::int64_t n = from.shape.elements();
  for (std::int64_t i = 0; i < n; ++i) {
    std::int64_t a = 0, b = 0;
    for (std::int64_t rest = i, d = from.shape.rank() - 1; d >= 0; --d) {
      const std::int64_t at = rest % from.shape[static_cast<int>(d)];
      rest /= from.shape[static_cast<int>(d)];
      a += at * from.strides[static_cast<int>(d)];
      b += at * to.strides[static_cast<int>(d)];
    }
    convert(from.data + a * static_cast<std::int64_t>(size_of(from.dtype)), from.dtype,
            to.data + b * static_cast<std::int64_t>(size_of(to.dtype)), to.dtype, 1);
  }
}

}  // namespace ballast::ref
