#pragma once

#include "ops/kernels/cuda_view.h"

namespace ballast::ops::cuda {

// The operands of ops/sinusoid.h.
struct Sinusoid {
  View t, y;
};
void sinusoid(const Sinusoid& a, void* stream);

}  // namespace ballast::ops::cuda
