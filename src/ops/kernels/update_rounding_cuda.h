#pragma once

#include "ops/kernels/cuda_view.h"
#include "ops/kernels/random_cuda.h"

namespace ballast::ops::cuda {

// ops/kernels/update_rounding.h as CUDA sources see it.
struct ParameterRounding {
  enum Kind : int { nearest, kahan, stochastic };
  Kind kind = nearest;
  void* carry = nullptr;  // kahan: as large as the parameter, bf16
  RandomKey random;
  std::uint64_t first_element = 0;
};

}  // namespace ballast::ops::cuda
