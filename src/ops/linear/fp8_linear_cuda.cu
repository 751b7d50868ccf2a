#include "ops/kernels/cuda_kernel.cuh"
#include "ops/linear/fp8_linear_cuda.h"

namespace ballast::ops::cuda {
namespace {

// A thread writes one scale; a vector has some thousands, so 256 threads a block fill part of the
// machine for a microsecond.
constexpr int kThreads = 256;

__global__ void spread(const unsigned char* from, std::int64_t step, float* to,
                       std::int64_t wanted) {
  const std::int64_t i = blockIdx.x * std::int64_t{kThreads} + threadIdx.x;
  if (i >= wanted) return;
  float x = 1;
  if (from != nullptr) {
    const unsigned char* p = from + i * step;  // at any address
    const std::uint32_t bits =
        p[0] | p[1] << 8 | p[2] << 16 | static_cast<std::uint32_t>(p[3]) << 24;
    x = __uint_as_float(bits);
  }
  to[i] = x;
}

}  // namespace

void spread_scale(const SpreadScale& a, void* stream) {
  if (a.wanted == 0) return;
  spread<<<blocks_for(a.wanted, kThreads), kThreads, 0, stream_of(stream)>>>(
      static_cast<const unsigned char*>(a.from), a.count == 1 ? 0 : 4, a.to, a.wanted);
  check_launch("spread_scale");
}

}  // namespace ballast::ops::cuda
