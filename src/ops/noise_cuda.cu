#include "ops/kernels/random_cuda.cuh"
#include "ops/noise_cuda.h"

namespace ballast::ops::cuda {
namespace {

// A thread makes the four numbers of one block of words; double-precision logarithms and sines are
// the work, so any block size that fills the machine does.
constexpr int kThreads = 128;

__device__ float2 normal_pair(std::uint32_t word0, std::uint32_t word1) {
  constexpr double kPi = 3.141592653589793238462643383279502884;
  const double u = (static_cast<double>(word0) + 1.0) * 0x1p-32;
  const double angle = 2.0 * kPi * (static_cast<double>(word1) * 0x1p-32);
  const double r = sqrt(-2.0 * log(u));
  double s, c;
  sincos(angle, &s, &c);
  return make_float2(static_cast<float>(r * c), static_cast<float>(r * s));
}

__global__ void make_noise(float* to, std::int64_t n, RandomKey source, std::uint64_t first) {
  const std::uint64_t begin = first / 4, end = (first + static_cast<std::uint64_t>(n) + 3) / 4;
  for (std::uint64_t b = begin + blockIdx.x * std::uint64_t{kThreads} + threadIdx.x; b < end;
       b += std::uint64_t{gridDim.x} * kThreads) {
    const uint4 w = random_block(source, b);
    const float2 p = normal_pair(w.x, w.y), q = normal_pair(w.z, w.w);
    const float x[4] = {p.x, p.y, q.x, q.y};
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const auto i = static_cast<std::int64_t>(4 * b + k - first);  // negative before the first
      if (i >= 0 && i < n) to[i] = x[k];
    }
  }
}

}  // namespace

void noise(const Noise& a, void* stream) {
  const std::int64_t n = a.to.elements();
  if (n == 0) return;
  make_noise<<<some_blocks(n / 4 + 2, kThreads), kThreads, 0, stream_of(stream)>>>(
      static_cast<float*>(a.to.data), n, a.source, a.first);
  check_launch("noise");
}

}  // namespace ballast::ops::cuda
