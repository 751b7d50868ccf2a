#include "ops/cross_entropy_cuda.h"
#include "ops/kernels/row_kernel.cuh"

namespace ballast::ops::cuda {
namespace {

// A block owns a row: it walks over it for the largest number, for the sum, and for the gradient.
// 512 threads: a row of 32,128 numbers is 63 each, and a few dozen rows fill the machine.
constexpr int kThreads = 512;
constexpr float kInfinity = __builtin_huge_valf();

__device__ __forceinline__ float block_max(float x, float* scratch) {
#pragma unroll
  for (int o = 16; o > 0; o >>= 1) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, o));
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = x;
  __syncthreads();
  float most = -kInfinity;
  for (int w = 0; w < kThreads / 32; ++w) most = fmaxf(most, scratch[w]);
  __syncthreads();
  return most;
}

__global__ void __launch_bounds__(kThreads)
    rows_of(Matrix x, const std::int32_t* labels, const float* weight, float* losses, Matrix dx,
            std::int64_t classes) {
  __shared__ float scratch[32];
  const std::int64_t r = blockIdx.x;
  const std::int64_t label = labels[r];
  if (label < 0) {
    if (threadIdx.x == 0) losses[r] = 0;
    if (!dx.data) return;
    for (std::int64_t c = threadIdx.x; c < classes; c += kThreads) write(dx, r, c, 0);
    return;
  }
  float most = -kInfinity;
  for (std::int64_t c = threadIdx.x; c < classes; c += kThreads) most = fmaxf(most, read(x, r, c));
  most = block_max(most, scratch);
  float sum = 0;
  for (std::int64_t c = threadIdx.x; c < classes; c += kThreads) sum += expf(read(x, r, c) - most);
  sum = row_sum(sum, scratch);
  if (threadIdx.x == 0) losses[r] = most + logf(sum) - read(x, r, label);
  __syncthreads();  // dx may be x
  if (!dx.data) return;
  const float share = *weight / sum;
  for (std::int64_t c = threadIdx.x; c < classes; c += kThreads) {
    const float p = expf(read(x, r, c) - most) * share;
    write(dx, r, c, c == label ? p - *weight : p);
  }
}

}  // namespace

void cross_entropy(const CrossEntropy& a, void* stream) {
  const std::int64_t rows = a.x.shape[0];
  if (rows == 0) return;
  rows_of<<<static_cast<unsigned>(rows), kThreads, 0, stream_of(stream)>>>(
      matrix(a.x), static_cast<const std::int32_t*>(a.labels.data),
      static_cast<const float*>(a.weight.data), static_cast<float*>(a.losses.data), matrix(a.dx),
      a.x.shape[1]);
  check_launch("cross_entropy");
}

}  // namespace ballast::ops::cuda
