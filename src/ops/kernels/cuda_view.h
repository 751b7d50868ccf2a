#pragma once

#include <cstdint>

#include "core/dtype_kind.h"

namespace ballast {
template <class Byte>
struct BasicTensorView;
}

namespace ballast::ops::cuda {

// A tensor view as CUDA sources see it: they are C++17 and cannot include core/tensor.h. Strides
// are in elements; data is null where an optional operand is missing. Whether it may be written is
// said where it is used.
struct View {
  void* data = nullptr;
  DType dtype = DType::f32;
  int rank = 0;
  std::int64_t shape[8] = {};
  std::int64_t strides[8] = {};

  View() = default;
  template <class Byte>
  View(const BasicTensorView<Byte>& t);  // the conversion is meant: ops/kernels/cuda_call.h

  explicit operator bool() const { return data != nullptr; }
  std::int64_t elements() const {
    std::int64_t n = 1;
    for (int i = 0; i < rank; ++i) n *= shape[i];
    return n;
  }
};

}  // namespace ballast::ops::cuda
