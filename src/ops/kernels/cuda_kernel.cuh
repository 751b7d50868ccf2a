#pragma once

// What kernels share: element types, loads and stores through f32, sums of a warp and of a block in
// a fixed order, launch sizes. Included by .cu files only.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "memory/cuda_check.h"
#include "ops/kernels/cuda_view.h"

namespace ballast::ops::cuda {

using bf16 = __nv_bfloat16;
using f16 = __half;
using f8_e4m3 = __nv_fp8_e4m3;
using f8_e5m2 = __nv_fp8_e5m2;

inline cudaStream_t stream_of(void* native) { return static_cast<cudaStream_t>(native); }

template <class T>
struct Type {
  using type = T;
};

// Calls f(Type<T>()) for the dtype of an activation (f32, bf16).
template <class F>
void with_activation(DType t, F&& f) {
  if (t == DType::f32) return f(Type<float>());
  return f(Type<bf16>());
}
// ... of a parameter (f32, bf16, f16).
template <class F>
void with_parameter(DType t, F&& f) {
  if (t == DType::f16) return f(Type<f16>());
  return with_activation(t, static_cast<F&&>(f));
}

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(bf16 x) { return __bfloat162float(x); }
__device__ __forceinline__ float to_float(f16 x) { return __half2float(x); }
__device__ __forceinline__ float to_float(f8_e4m3 x) { return static_cast<float>(x); }
__device__ __forceinline__ float to_float(f8_e5m2 x) { return static_cast<float>(x); }
__device__ __forceinline__ float to_float(std::int8_t x) { return static_cast<float>(x); }

template <class T>
__device__ __forceinline__ T from_float(float x);  // one rounding to nearest even
template <>
__device__ __forceinline__ float from_float<float>(float x) {
  return x;
}
template <>
__device__ __forceinline__ bf16 from_float<bf16>(float x) {
  return __float2bfloat16_rn(x);
}
template <>
__device__ __forceinline__ f16 from_float<f16>(float x) {
  return __float2half_rn(x);
}

// Eight neighbouring elements, moved 16 bytes at a time (two loads for f32); p is aligned to that.
template <class T>
__device__ __forceinline__ void load8(const T* p, float (&x)[8]) {
  static_assert(sizeof(T) == 2 || sizeof(T) == 4, "two or four bytes");
  if constexpr (sizeof(T) == 4) {
    const float4 a = reinterpret_cast<const float4*>(p)[0];
    const float4 b = reinterpret_cast<const float4*>(p)[1];
    x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w;
    x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
  } else {
    const uint4 u = *reinterpret_cast<const uint4*>(p);
    const T* e = reinterpret_cast<const T*>(&u);
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = to_float(e[i]);
  }
}
template <class T>
__device__ __forceinline__ void store8(T* p, const float (&x)[8]) {
  static_assert(sizeof(T) == 2 || sizeof(T) == 4, "two or four bytes");
  if constexpr (sizeof(T) == 4) {
    reinterpret_cast<float4*>(p)[0] = make_float4(x[0], x[1], x[2], x[3]);
    reinterpret_cast<float4*>(p)[1] = make_float4(x[4], x[5], x[6], x[7]);
  } else {
    uint4 u;
    T* e = reinterpret_cast<T*>(&u);
#pragma unroll
    for (int i = 0; i < 8; ++i) e[i] = from_float<T>(x[i]);
    *reinterpret_cast<uint4*>(p) = u;
  }
}

// Whether rows of this view may be moved with load8 and store8.
inline bool in_eights(const View& v) {
  const std::int64_t size = v.dtype == DType::f32 ? 4 : 2;
  return reinterpret_cast<std::uintptr_t>(v.data) % 16 == 0 && v.shape[v.rank - 1] % 8 == 0 &&
         (v.rank < 2 || v.strides[v.rank - 2] * size % 16 == 0);
}

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int o = 16; o > 0; o >>= 1) x += __shfl_xor_sync(0xffffffffu, x, o);
  return x;
}

// The sum over the block's threads (whole warps, at most 1024), the same in every thread. scratch:
// 32 floats of shared memory; the caller synchronises before it is used again.
__device__ __forceinline__ float block_sum(float x, float* scratch) {
  x = warp_sum(x);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  if (lane == 0) scratch[warp] = x;
  __syncthreads();
  float sum = 0;
  for (int w = 0; w < warps; ++w) sum += scratch[w];
  return sum;
}

inline unsigned blocks_for(std::int64_t items, std::int64_t per_block) {
  return static_cast<unsigned>((items + per_block - 1) / per_block);
}
// Blocks of a kernel that strides through its items: enough to fill every multiprocessor.
inline unsigned some_blocks(std::int64_t items, std::int64_t per_block, unsigned most = 132 * 16) {
  const unsigned n = blocks_for(items, per_block);
  return n < most ? n : most;
}

}  // namespace ballast::ops::cuda
