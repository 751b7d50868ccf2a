#pragma once

#include "ops/kernels/cuda_view.h"

namespace ballast::ops::cuda {

// The operands of ops/gated_gelu.h.
struct GatedGelu {
  View a, b, z;
};
void gated_gelu(const GatedGelu& x, void* stream);

struct GatedGeluBackward {
  View a, b, dz, da, db;
};
void gated_gelu_backward(const GatedGeluBackward& x, void* stream);

}  // namespace ballast::ops::cuda
