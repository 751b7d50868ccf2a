#pragma once

#include "ops/adamw_coefficients.h"
#include "ops/kernels/cuda_view.h"
#include "ops/kernels/ordered_sum_cuda.h"
#include "ops/kernels/state_tables_cuda.h"
#include "ops/kernels/update_rounding_cuda.h"

namespace ballast::ops::cuda {

// ops/adamw_8bit.h
struct AdamW8bit {
  View p, m, v, m_absmax, v_absmax, shift, g, grad_scale;
  float keep_m = 0, add_m = 0, keep_v = 0, add_v = 0, eps = 0;
  bool decays = false, stabilize = false;
  double learning_rate = 0, weight_decay = 0;
  double k1 = 1, k2 = 1;
  double floor = 0;           // stabilize: least v
  double* scratch = nullptr;  // stabilize: kSumScratchBytes
  ParameterRounding rounding;
};
// Of the same types, kind of rounding, factor and coefficients but those of the rate; one alone
// where it is stabilized. tables: state_tables(), on the GPU.
void adamw_8bit(const AdamW8bit* tensors, int count, const StateTables* tables, void* stream);

}  // namespace ballast::ops::cuda
