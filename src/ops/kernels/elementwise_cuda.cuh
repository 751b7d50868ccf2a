#pragma once

// Elements that do not depend on each other, eight to a thread. Whole eights of aligned tensors are
// moved 16 bytes at a time, others one by one, and both go through the same arithmetic: an
// element's bits depend neither on where it lies nor on its neighbours. Operations whose order
// matters are written as intrinsics, because the compiler may fuse a product and a sum in one place
// and not in another. Included by .cu files only.

#include "ops/kernels/cuda_kernel.cuh"

namespace ballast::ops::cuda {

// Fused nowhere.
__device__ __forceinline__ float mul(float a, float b) { return __fmul_rn(a, b); }
__device__ __forceinline__ float add(float a, float b) { return __fadd_rn(a, b); }
__device__ __forceinline__ float sub(float a, float b) { return __fsub_rn(a, b); }

// count <= 8 elements, zeros behind. kWhole: eight of them, aligned.
template <bool kWhole, class T>
__device__ __forceinline__ void load_some(const T* p, int count, float (&x)[8]) {
  if constexpr (kWhole) {
    load8(p, x);
  } else {
#pragma unroll
    for (int k = 0; k < 8; ++k) x[k] = k < count ? to_float(p[k]) : 0.0f;
  }
}
template <bool kWhole, class T>
__device__ __forceinline__ void store_some(T* p, int count, const float (&x)[8]) {
  if constexpr (kWhole) {
    store8(p, x);
  } else {
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      if (k < count) p[k] = from_float<T>(x[k]);
    }
  }
}
template <bool kWhole>
__device__ __forceinline__ void store_some_codes(bf16* p, int count, const std::uint16_t (&x)[8]) {
  if constexpr (kWhole) {
    uint4 u;
    u.x = x[0] | static_cast<std::uint32_t>(x[1]) << 16;
    u.y = x[2] | static_cast<std::uint32_t>(x[3]) << 16;
    u.z = x[4] | static_cast<std::uint32_t>(x[5]) << 16;
    u.w = x[6] | static_cast<std::uint32_t>(x[7]) << 16;
    *reinterpret_cast<uint4*>(p) = u;
  } else {
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      if (k < count) reinterpret_cast<std::uint16_t*>(p)[k] = x[k];
    }
  }
}

constexpr int kEachThreads = 256;

// op.template run<kWhole>(i, count): elements [i, i + count). Bound by memory: any block size that
// fills the machine does.
template <class Op>
__global__ void __launch_bounds__(kEachThreads)
    each_eight(const __grid_constant__ Op op, std::int64_t n, bool aligned) {
  const std::int64_t eights = (n + 7) / 8, step = std::int64_t{gridDim.x} * kEachThreads;
  for (std::int64_t e = blockIdx.x * std::int64_t{kEachThreads} + threadIdx.x; e < eights;
       e += step) {
    const std::int64_t i = e * 8, left = n - i;
    if (aligned && left >= 8) {
      op.template run<true>(i, 8);
    } else {
      op.template run<false>(i, left < 8 ? static_cast<int>(left) : 8);
    }
  }
}

inline bool sixteen(const void* p) { return reinterpret_cast<std::uintptr_t>(p) % 16 == 0; }

template <class Op>
void run_each(const Op& op, std::int64_t n, bool aligned, void* stream, const char* name) {
  if (n == 0) return;
  each_eight<<<some_blocks((n + 7) / 8, kEachThreads), kEachThreads, 0, stream_of(stream)>>>(
      op, n, aligned);
  check_launch(name);
}

}  // namespace ballast::ops::cuda
