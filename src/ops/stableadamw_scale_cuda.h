#pragma once

#include "ops/adamw_coefficients.h"
#include "ops/kernels/cuda_view.h"
#include "ops/kernels/ordered_sum_cuda.h"

namespace ballast::ops::cuda {

// ops/stableadamw_scale.h
struct StableAdamWScale {
  View v, g, grad_scale, rates;
  AdamWCoefficients coefficients;
  double learning_rate = 0, weight_decay = 0;
  double* scratch = nullptr;  // kSumScratchBytes
};
void stableadamw_scale(const StableAdamWScale& a, void* stream);

}  // namespace ballast::ops::cuda
