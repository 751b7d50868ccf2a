#pragma once

#include "ops/cuda_view.h"

namespace ballast::ops::cuda {

// The operands of ops/rms_norm.h; dw may be absent.
struct RmsNorm {
  View x, w, y, r;
  float eps = 0;
};
void rms_norm(const RmsNorm& a, void* stream);

struct RmsNormBackward {
  View x, r, w, dy, dx, dw;
};
void rms_norm_backward(const RmsNormBackward& a, void* stream);

}  // namespace ballast::ops::cuda
