#pragma once

#include "ops/kernels/cuda_view.h"

namespace ballast::ops::cuda {

// The operands of ops/rms_norm.h; dw and turn may be absent. A turn is taken only where
// rotates_in_one_kernel says so; elsewhere rope_3d turns, before or after.
struct RmsNorm {
  View x, w, y, r;
  float eps = 0;
  View cos_sin;
  bool silu = false;  // only where silu_in_one_kernel says so
};
bool rotates_in_one_kernel(const RmsNorm& a);
bool silu_in_one_kernel(const RmsNorm& a);
void rms_norm(const RmsNorm& a, void* stream);

struct RmsNormBackward {
  View x, r, w, dy, dx, dw, cos_sin;
  float* scratch = nullptr;  // dw: column_scratch_bytes()
};
bool rotates_in_one_kernel(const RmsNormBackward& a);
void rms_norm_backward(const RmsNormBackward& a, void* stream);

}  // namespace ballast::ops::cuda
