#pragma once

#include "ops/kernels/cuda_view.h"

namespace ballast::ops::cuda {

// The operands of ops/silu.h as matrices [R, C].
struct Silu {
  View x, y;
};
void silu(const Silu& a, void* stream);

struct SiluBackward {
  View x, dy, dx;
};
void silu_backward(const SiluBackward& a, void* stream);

}  // namespace ballast::ops::cuda
