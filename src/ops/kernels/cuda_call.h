#pragma once

#include "core/tensor.h"
#include "ops/kernels/cuda_view.h"

namespace ballast::ops::cuda {

// What the checked form of an operation hands to its CUDA kernels.
template <class Byte>
View::View(const BasicTensorView<Byte>& t)
    : data(const_cast<std::byte*>(t.data)), dtype(t.dtype), rank(t.shape.rank()) {
  for (int i = 0; i < rank; ++i) {
    shape[i] = t.shape[i];
    strides[i] = t.strides[i];
  }
}

}  // namespace ballast::ops::cuda
