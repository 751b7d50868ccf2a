#pragma once

#include "ops/kernels/cuda_view.h"

namespace ballast::ops::cuda {

// The operands of ops/gelu.h as matrices [R, C].
struct Gelu {
  View x, y;
};
void gelu(const Gelu& a, void* stream);

struct GeluBackward {
  View x, dy, dx, y;
};
void gelu_backward(const GeluBackward& a, void* stream);

}  // namespace ballast::ops::cuda
