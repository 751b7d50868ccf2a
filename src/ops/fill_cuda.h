#pragma once

#include "ops/kernels/cuda_view.h"

namespace ballast::ops::cuda {

// Every element of `to` becomes the low bytes of pattern; ops/fill.h. Any strides, any address.
struct Fill {
  View to;
  std::uint64_t pattern = 0;
};
void fill(const Fill& a, void* stream);

}  // namespace ballast::ops::cuda
