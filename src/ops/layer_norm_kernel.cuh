#pragma once

// What kernels with a layer norm share; included by .cu files only.

#include "ops/kernels/row_kernel.cuh"

namespace ballast::ops::cuda {

// Mean and sum of squared differences of n numbers.
struct Moments {
  float mean, m2;
};
// The moments of a row of 16 T elements, of which each thread holds 16: of its own, then of pairs
// of equal counts up to a warp, then of the block's warps. Differences are always those to a mean
// of the numbers themselves, so nothing is lost however large the mean is or one element of the
// row; and it takes one barrier (see block_sums about `part`).
template <int T, class X>
__device__ __forceinline__ Moments row_moments(RowShare<X, T>& row, float2* part) {
  float x[16], sum = 0, m2 = 0;
  row.unpack(x);
#pragma unroll
  for (int i = 0; i < 16; ++i) sum += x[i];
  float mean = sum * (1.0f / 16);
  row.forget_unpacked();
  row.unpack(x);
#pragma unroll
  for (int i = 0; i < 16; ++i) m2 += (x[i] - mean) * (x[i] - mean);
  row.forget_unpacked();
  float half = 8;  // of the count on each side
#pragma unroll
  for (int o = 1; o < 32; o *= 2, half *= 2) {
    const float other = __shfl_xor_sync(0xffffffffu, mean, o);
    const float other_m2 = __shfl_xor_sync(0xffffffffu, m2, o);
    m2 = (m2 + other_m2) + (other - mean) * (other - mean) * half;
    mean = (mean + other) * 0.5f;
  }
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = make_float2(mean, m2);
  __syncthreads();
  // From the first warp's mean: as it is one of the means, the difference of the two sums of
  // squares below keeps at least a tenth of them.
  constexpr int kWarps = T / 32;
  const float pivot = part[0].x;
  float d_sum = 0, d_squares = 0;
  m2 = 0;
#pragma unroll kWarpsAtOnce
  for (int w = 0; w < kWarps; ++w) {
    const float2 p = part[w];
    const float d = p.x - pivot;
    d_sum += d;
    d_squares += d * d;
    m2 += p.y;
  }
  return {pivot + d_sum * (1.0f / kWarps),
          m2 + (d_squares - d_sum * d_sum * (1.0f / kWarps)) * (16.0f * 32)};
}

// What a norm's mul is added to.
inline float base_of(const View& mul, bool one_plus) { return one_plus || !mul ? 1.0f : 0.0f; }

}  // namespace ballast::ops::cuda
