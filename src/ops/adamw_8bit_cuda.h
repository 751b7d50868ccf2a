#pragma once

#include "ops/cuda_view.h"
#include "ops/ordered_sum_cuda.h"
#include "ops/update_rounding_cuda.h"

namespace ballast::ops::cuda {

// ops/adamw_8bit.h. The maps are read on the host, while the call runs.
struct AdamW8bit {
  View p, m, v, m_absmax, v_absmax, shift, g, grad_scale;
  const float* m_values = nullptr;      // 256 of each
  const float* m_thresholds = nullptr;  // code = how many are at or below a number
  const float* v_values = nullptr;
  const float* v_thresholds = nullptr;
  float keep_m = 0, add_m = 0, keep_v = 0, add_v = 0, eps = 0;
  bool decays = false, stabilize = false;
  double learning_rate = 0, weight_decay = 0;
  double k1 = 1, k2 = 1;
  double floor = 0;           // stabilize: least v
  double* scratch = nullptr;  // stabilize: sum_scratch()
  ParameterRounding rounding;
};
void adamw_8bit(const AdamW8bit& a, void* stream);

}  // namespace ballast::ops::cuda
