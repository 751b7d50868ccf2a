#pragma once

#include "ops/kernels/cuda_view.h"

namespace ballast::ops::cuda {

// The operands of ops/gated_residual.h; gate and index, and in backward y and dgate, may be absent.
struct GatedResidual {
  View x, y, gate, index, out;
};
void gated_residual(const GatedResidual& a, void* stream);

struct GatedResidualBackward {
  View dout, gate, index, dy, y, dgate;
  float* scratch = nullptr;  // dgate: column_scratch_bytes()
};
void gated_residual_backward(const GatedResidualBackward& a, void* stream);

}  // namespace ballast::ops::cuda
