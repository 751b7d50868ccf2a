#pragma once

#include "ops/kernels/cuda_view.h"
#include "ops/kernels/random_cuda.h"

namespace ballast::ops::cuda {

// ops/noise.h
struct Noise {
  View to;
  RandomKey source;
  std::uint64_t first = 0;
};
void noise(const Noise& a, void* stream);

}  // namespace ballast::ops::cuda
