#pragma once

// ops/kernels/ordered_sum.h on the GPU, in the CPU's order and so with its bits. Included by .cu
// files only.

#include "ops/kernels/cuda_kernel.cuh"
#include "ops/kernels/ordered_sum.h"
#include "ops/kernels/ordered_sum_cuda.h"

namespace ballast::ops::cuda {

constexpr int kSumThreads = 128;  // of kernels that give a row to sixteen threads
constexpr int kBlockThreads = 16 * kSumPieces;

// The sum over [begin, end) as product_sum of ops/kernels/ordered_sum_simd.h: sixteen neighbouring
// threads each take every sixteenth element, and their sums are added by halves. All 32 threads of
// a warp call it; the result is in the first of the sixteen. load(i) reads, add(item, i, sum)
// returns the new sum. Many loads are in flight, because few threads work on a tensor.
template <class Load, class Add>
__device__ __forceinline__ double sixteen_sums(std::int64_t begin, std::int64_t end, Load&& load,
                                               Add&& add) {
  constexpr int kFlight = sizeof(load(begin)) <= sizeof(float) ? 32 : 16;
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

// The sum of a block's pieces, by halves, in the first thread.
__device__ __forceinline__ double add_pieces(const double* piece) {
  static_assert(kSumPieces == 32, "a warp adds them");
  if (threadIdx.x >= kSumPieces) return 0;
  double sum = piece[threadIdx.x];
#pragma unroll
  for (int half = kSumPieces / 2; half > 0; half /= 2) {
    sum += __shfl_down_sync(0xffffffffu, sum, half, kSumPieces);
  }
  return sum;
}

// Leaves the first thread's sum in its place and counts the block. True in all threads of the one
// that comes last: the sums of all are there.
__device__ __forceinline__ bool comes_last(double sum, double* place, unsigned* finished) {
  __shared__ bool last;
  if (threadIdx.x == 0) {
    *place = sum;
    __threadfence();  // the sum is in reach of all before it is counted
    last = atomicAdd(finished, 1u) == gridDim.x - 1;
  }
  __syncthreads();
  if (last) __threadfence();
  return last;
}

// A block of threads per block of kSumBlock elements, sixteen threads per piece. The one that
// finishes last adds the sums of all in order: a second launch would take longer than a small
// tensor's sum. Term: begin() makes what a thread needs, with load(i), add(item, i, sum) and
// finish(sum of a piece).
template <class Term>
__global__ void __launch_bounds__(kBlockThreads)
    sum_blocks(const __grid_constant__ Term term, std::int64_t first, std::int64_t n,
               double* partial, unsigned* finished, double* total) {
  __shared__ double piece[kSumPieces];
  const int k = threadIdx.x / 16;
  const std::int64_t at = (first + blockIdx.x) * kSumBlock + k * kSumPiece;
  const std::int64_t begin = at < n ? at : n, end = n - begin < kSumPiece ? n : begin + kSumPiece;
  const auto thread = term.begin();
  const double of_piece = sixteen_sums(
      begin, end, [&](std::int64_t i) { return thread.load(i); },
      [&](const auto& item, std::int64_t i, double s) { return thread.add(item, i, s); });
  if (threadIdx.x % 16 == 0) piece[k] = thread.finish(of_piece);
  __syncthreads();
  if (!comes_last(add_pieces(piece), partial + blockIdx.x, finished)) return;
  // volatile: other multiprocessors wrote it, so the first-level cache is not asked
  const volatile double* const sums = partial;
  const double sum = add_in_order(sums, gridDim.x, *total);
  if (threadIdx.x == 0) {
    *total = sum;
    *finished = 0;
  }
}

inline unsigned* finished_blocks(double* scratch) {
  return reinterpret_cast<unsigned*>(scratch + kSumPartials + kSumScalars);
}

// Before the first launch that counts blocks: the memory was another instruction's. Each launch
// leaves zero behind.
inline void clear_finished_blocks(double* scratch, void* stream, const char* name) {
  check_cuda(cudaMemsetAsync(finished_blocks(scratch), 0, sizeof(unsigned), stream_of(stream)),
             name);
}

// *total += the sum of all terms. scratch: kSumScratchBytes.
template <class Term>
void add_ordered(const Term& term, std::int64_t n, double* total, double* scratch, void* stream,
                 const char* name) {
  const std::int64_t blocks = (n + kSumBlock - 1) / kSumBlock;
  if (blocks > 0) clear_finished_blocks(scratch, stream, name);
  for (std::int64_t first = 0; first < blocks; first += kSumPartials) {
    const std::int64_t here = blocks - first < kSumPartials ? blocks - first : kSumPartials;
    sum_blocks<<<static_cast<unsigned>(here), kBlockThreads, 0, stream_of(stream)>>>(
        term, first, n, scratch, finished_blocks(scratch), total);
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
