#pragma once

#include "ops/dropout_unit.h"
#include "ops/kernels/cuda_view.h"
#include "ops/kernels/random_cuda.h"

namespace ballast::ops::cuda {

// ops/dropout.h
struct Dropout {
  View x, y;
  double probability = 0;
  RandomKey source;
  std::int64_t first_row = 0;
  bool accumulate = false;
  DropUnit unit = DropUnit::element;
};
void dropout(const Dropout& a, void* stream);

}  // namespace ballast::ops::cuda
