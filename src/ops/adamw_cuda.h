#pragma once

#include "ops/adamw_coefficients.h"
#include "ops/kernels/cuda_view.h"
#include "ops/kernels/update_rounding_cuda.h"

namespace ballast::ops::cuda {

// ops/adamw.h
struct AdamW {
  View p, m, v, g, grad_scale, rates;
  AdamWCoefficients coefficients;
  ParameterRounding rounding;
};
void adamw(const AdamW* tensors, int count, void* stream);

}  // namespace ballast::ops::cuda
