#pragma once

// The rotation of ops/rope_3d.h for eight neighbours, included by .cu files only.

#include "ops/kernels/cuda_kernel.cuh"

namespace ballast::ops::cuda {

// Which product is fused with the sum is said, so that all kernels give the same bits.
__device__ __forceinline__ void rotate_pair(float& even, float& odd, float c, float s) {
  const float turned = fmaf(even, c, -__fmul_rn(odd, s));
  odd = fmaf(even, s, __fmul_rn(odd, c));
  even = turned;
}

// turn: cos, sin, cos, ... of the four pairs; sign -1 turns back.
__device__ __forceinline__ void rotate_eight(float* x, const float (&cos_sin)[8], float sign) {
#pragma unroll
  for (int j = 0; j < 8; j += 2) rotate_pair(x[j], x[j + 1], cos_sin[j], cos_sin[j + 1] * sign);
}

}  // namespace ballast::ops::cuda
