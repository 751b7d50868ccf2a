#pragma once

#include "ops/kernels/cuda_view.h"
#include "ops/kernels/ordered_sum_cuda.h"
#include "ops/kernels/update_rounding_cuda.h"

namespace ballast::ops::cuda {

// ops/adafactor.h. row, column and workspace for matrices, v for vectors.
struct Adafactor {
  View p, row, column, v, g, grad_scale, workspace;
  double keep = 0;  // b
  double eps_rows = 0, eps_scale = 0, clip_threshold = 1, weight_decay = 0;
  bool scale_parameter = false;
  double rate = 0;  // before p's size is in it
  ParameterRounding rounding;
  double* scratch = nullptr;  // kSumScratchBytes
};
void adafactor(const Adafactor& a, void* stream);

}  // namespace ballast::ops::cuda
