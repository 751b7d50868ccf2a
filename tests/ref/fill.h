#pragma once

#include <cstdint>
#include <cstring>

#include "core/tensor.h"

namespace ballast::ref {

// Puts one element, given as bytes, at every coordinate.
inline void fill(const TensorView& to, const void* element) {
  const std::int64_t n = to.shape.elements();
  for (std::int64_t i = 0; i < n; ++i) {
    std::int64_t at = 0;
    for (std::int64_t rest = i, d = to.shape.rank() - 1; d >= 0; --d) {
      at += rest % to.shape[static_cast<int>(d)] * to.strides[static_cast<int>(d)];
      rest /= to.shape[static_cast<int>(d)];
    }
    std::memcpy(to.data + at * static_cast<std::int64_t>(size_of(to.dtype)), element,
                size_of(to.dtype));
  }
}

}  // namespace ballast::ref
