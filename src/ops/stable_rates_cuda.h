#pragma once

#include "ops/adamw_coefficients.h"
#include "ops/kernels/cuda_view.h"
#include "ops/kernels/ordered_sum_cuda.h"

namespace ballast::ops::cuda {

// ops/stable_rates.h
struct StableRates {
  View v, g, grad_scale, rates;
  AdamWCoefficients coefficients;
  double learning_rate = 0, weight_decay = 0;
  double* scratch = nullptr;  // sum_scratch()
};
void stable_rates(const StableRates& a, void* stream);

}  // namespace ballast::ops::cuda
