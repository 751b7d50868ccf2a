#pragma once

#include "ops/kernels/cuda_view.h"
#include "ops/kernels/update_rounding_cuda.h"

namespace ballast::ops::cuda {

// ops/sgd.h; b may be missing.
struct Sgd {
  View p, b, g, grad_scale;
  float momentum = 0, decay = 0, rate = 0;
  ParameterRounding rounding;
};
void sgd(const Sgd& a, void* stream);

}  // namespace ballast::ops::cuda
