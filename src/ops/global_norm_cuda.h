#pragma once

#include "ops/kernels/cuda_view.h"
#include "ops/kernels/ordered_sum_cuda.h"

namespace ballast::ops::cuda {

// ops/global_norm.h
struct SumSquares {
  const View* x = nullptr;  // of one type
  int count = 0;
  View sum;
  double* scratch = nullptr;  // kSumScratchBytes
};
void sum_squares(const SumSquares& a, void* stream);

struct ClipFactor {
  View sum;
  double max_norm = 0;
  View factor, norm;
};
void clip_factor(const ClipFactor& a, void* stream);

struct ScaleBy {
  View factor, x;
};
void scale_by(const ScaleBy& a, void* stream);

struct LimitFactor {
  View ga, gb;
  double scale = 1, max_norm = 0;
  View factor;
  double* scratch = nullptr;  // kSumScratchBytes
};
void limit_factor(const LimitFactor& a, void* stream);

}  // namespace ballast::ops::cuda
