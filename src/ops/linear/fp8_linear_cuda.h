#pragma once

#include <cstddef>

#include "ops/kernels/cuda_view.h"
#include "ops/linear/linear_cuda.h"

namespace ballast {
class GpuQueue;
}

namespace ballast::ops::cuda {

// --- ops/linear/fp8_linear.h by cuBLASLt (fp8_linear_cuda.cpp).

struct Fp8LinearScratch {  // bytes from the start of the workspace
  std::int64_t bias = 0, w_scale = 0, x_scale = 0, bytes = 0;
};

struct Fp8LinearCall {
  View x, x_scale, w, w_scale, bias, y;
  Fp8LinearScratch scratch;
  std::byte* workspace = nullptr;
  bool accumulate = false, gelu = false;
};
void fp8_linear(const Fp8LinearCall& a, GpuQueue& queue, Doing doing);

// --- Kernels (fp8_linear_cuda.cu).

// to[i] = from[i], or from[0] for all (count == 1), or 1 (none). from: f32 at any address.
struct SpreadScale {
  const void* from = nullptr;
  std::int64_t count = 0;
  float* to = nullptr;
  std::int64_t wanted = 0;
};
void spread_scale(const SpreadScale& a, void* stream);

}  // namespace ballast::ops::cuda
