#pragma once

#include "core/tensor.h"
#include "ops/kernels/cuda_view.h"

namespace ballast::ops::cuda {

// What the checked form of an operation hands to its CUDA kernels.
inline View view(const ConstTensorView& t) {
  View v;
  v.data = const_cast<std::byte*>(t.data);
  v.dtype = t.dtype;
  v.rank = t.shape.rank();
  for (int i = 0; i < v.rank; ++i) {
    v.shape[i] = t.shape[i];
    v.strides[i] = t.strides[i];
  }
  return v;
}

}  // namespace ballast::ops::cuda
