#pragma once

// ops/ordered_sum.h on the GPU, in the CPU's order and so with its bits. Included by .cu files
// only.

#include "ops/cuda_kernel.cuh"
#include "ops/ordered_sum.h"
#include "ops/ordered_sum_cuda.h"

namespace ballast::ops::cuda {

constexpr int kSumThreads = 128;

// The sum over [begin, end) as product_sum of ops/ordered_sum_simd.h: sixteen neighbouring threads
// each take every sixteenth element, and their sums are added by halves. All 32 threads of a warp
// call it; the result is in the first of the sixteen. load(i) reads, add(item, i, sum) returns the
// new sum. Sixteen loads are in flight, because few threads work on a tensor.
template <class Load, class Add>
__device__ __forceinline__ double sixteen_sums(std::int64_t begin, std::int64_t end, Load&& load,
                                               Add&& add) {
  constexpr int kFlight = 16;
  double sum = 0;
  std::int64_t i = begin + threadIdx.x % 16;
  for (; i + 16 * (kFlight - 1) < end; i += 16 * kFlight) {
    decltype(load(i)) items[kFlight];
#pragma unroll
    for (int k = 0; k < kFlight; ++k) items[k] = load(i + 16 * k);
#pragma unroll
    for (int k = 0; k < kFlight; ++k) sum = add(items[k], i + 16 * k, sum);
  }
  for (; i < end; i += 16) sum = add(load(i), i, sum);
#pragma unroll
  for (int half = 8; half > 0; half /= 2) sum += __shfl_down_sync(0xffffffffu, sum, half, 16);
  return sum;
}

// x^2 is exact in f64, so that fusing it with the sum changes nothing.
__device__ __forceinline__ double add_product(float a, float b, double sum) {
  return fma(static_cast<double>(a), static_cast<double>(b), sum);
}

// Sixteen threads per block of kSumBlock elements. Term: begin() makes what a thread needs, with
// load(i), add(item, i, sum) and finish(sum).
template <class Term>
__global__ void __launch_bounds__(kSumThreads)
    block_sums(const __grid_constant__ Term term, std::int64_t first, std::int64_t blocks,
               std::int64_t n, double* partial) {
  const std::int64_t b = (blockIdx.x * std::int64_t{kSumThreads} + threadIdx.x) / 16;
  const std::int64_t begin = b < blocks ? (first + b) * kSumBlock : n;
  const std::int64_t end = n - begin < kSumBlock ? n : begin + kSumBlock;
  const auto at = term.begin();
  const double sum = sixteen_sums(
      begin, end, [&](std::int64_t i) { return at.load(i); },
      [&](const auto& item, std::int64_t i, double s) { return at.add(item, i, s); });
  if (threadIdx.x % 16 == 0 && b < blocks) partial[b] = at.finish(sum);
}

// *total += x[0], += x[1] ...; one block, whose threads bring what the first one adds.
template <class T>
__device__ __forceinline__ double add_in_order(const T* x, std::int64_t n, double total) {
  __shared__ double piece[1024];
  for (std::int64_t first = 0; first < n; first += 1024) {
    const int count = n - first < 1024 ? static_cast<int>(n - first) : 1024;
    __syncthreads();
    for (int k = threadIdx.x; k < count; k += blockDim.x) {
      piece[k] = static_cast<double>(x[first + k]);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
#pragma unroll 16
      for (int k = 0; k < count; ++k) total += piece[k];
    }
  }
  return total;  // the first thread's
}

static __global__ void add_partials(const double* partial, std::int64_t n, double* total) {
  const double sum = add_in_order(partial, n, *total);
  if (threadIdx.x == 0) *total = sum;
}

// *total += the sum of all terms. scratch: kSumPartials doubles.
template <class Term>
void add_ordered(const Term& term, std::int64_t n, double* total, double* scratch, void* stream,
                 const char* name) {
  const std::int64_t blocks = (n + kSumBlock - 1) / kSumBlock;
  for (std::int64_t first = 0; first < blocks; first += kSumPartials) {
    const std::int64_t here = blocks - first < kSumPartials ? blocks - first : kSumPartials;
    block_sums<<<blocks_for(here * 16, kSumThreads), kSumThreads, 0, stream_of(stream)>>>(
        term, first, here, n, scratch);
    check_launch(name);
    add_partials<<<1, 256, 0, stream_of(stream)>>>(scratch, here, total);
    check_launch(name);
  }
}

template <class T>
struct SquareTerm {
  const T* x;
  __device__ SquareTerm begin() const { return *this; }
  __device__ float load(std::int64_t i) const { return to_float(x[i]); }
  __device__ double add(float v, std::int64_t, double sum) const { return add_product(v, v, sum); }
  __device__ double finish(double sum) const { return sum; }
};

}  // namespace ballast::ops::cuda
