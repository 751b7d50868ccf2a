#include "ops/kernels/cuda_kernel.cuh"
#include "ops/relative_bias_cuda.h"

namespace ballast::ops::cuda {
namespace {

// A thread per number: entries of a bias, or of a table that a gradient is added to. There are few
// of either (a hundred thousand at most), so a block's size hardly matters.
constexpr int kThreads = 128;

__device__ __forceinline__ int bucket(const RelativeBuckets& b, std::int64_t distance) {
  const bool behind = b.bidirectional && distance > 0;
  const std::int64_t n = behind ? distance : distance < 0 ? -distance : 0;
  int last = b.side - 1;
  while (b.edge[last] > n) --last;
  return behind ? b.side + last : last;
}

__global__ void forward(const float* table, float* bias, std::int64_t heads, std::int64_t entries,
                        const __grid_constant__ RelativeBuckets buckets, std::int64_t zero) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= heads * entries) return;
  const std::int64_t h = i / entries, e = i % entries;
  bias[i] = table[bucket(buckets, e - zero) * heads + h];
}

__global__ void backward(float* dtable, const float* dbias, std::int64_t heads,
                         std::int64_t entries, std::int64_t count,
                         const __grid_constant__ RelativeBuckets buckets, std::int64_t zero) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= heads * count) return;
  const std::int64_t n = i / heads, h = i % heads;
  float sum = 0;
  for (std::int64_t e = 0; e < entries; ++e) {
    if (bucket(buckets, e - zero) == n) sum += dbias[h * entries + e];
  }
  dtable[i] += sum;
}

}  // namespace

void relative_bias(const RelativeBias& a, void* stream) {
  const std::int64_t heads = a.bias.shape[0], entries = a.bias.shape[1];
  if (heads * entries == 0) return;
  forward<<<blocks_for(heads * entries, kThreads), kThreads, 0, stream_of(stream)>>>(
      static_cast<const float*>(a.table.data), static_cast<float*>(a.bias.data), heads, entries,
      a.buckets, a.zero);
  check_launch("relative_bias");
}

void relative_bias_backward(const RelativeBias& a, void* stream) {
  const std::int64_t heads = a.bias.shape[0], entries = a.bias.shape[1];
  const std::int64_t count = a.buckets.bidirectional ? 2 * a.buckets.side : a.buckets.side;
  if (heads == 0) return;
  backward<<<blocks_for(heads * count, kThreads), kThreads, 0, stream_of(stream)>>>(
      static_cast<float*>(a.table.data), static_cast<const float*>(a.bias.data), heads, entries,
      count, a.buckets, a.zero);
  check_launch("relative_bias_backward");
}

}  // namespace ballast::ops::cuda
