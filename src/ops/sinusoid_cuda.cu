#include "ops/kernels/cuda_kernel.cuh"
#include "ops/sinusoid_cuda.h"

namespace ballast::ops::cuda {
namespace {

constexpr int kThreads = 128;  // half a row of 256: one block per timestep

// A thread makes one cosine and its sine in f64.
__global__ void waves(const double* t, float* y, std::int64_t timesteps, std::int64_t half) {
  const std::int64_t at = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (at >= timesteps * half) return;
  const std::int64_t row = at / half, i = at % half;
  const double frequency = pow(10000.0, -static_cast<double>(i) / static_cast<double>(half));
  const double angle = t[row] * frequency;
  y[row * 2 * half + i] = static_cast<float>(cos(angle));
  y[row * 2 * half + half + i] = static_cast<float>(sin(angle));
}

}  // namespace

void sinusoid(const Sinusoid& a, void* stream) {
  const std::int64_t timesteps = a.y.shape[0], half = a.y.shape[1] / 2;
  if (timesteps * half == 0) return;
  waves<<<blocks_for(timesteps * half, kThreads), kThreads, 0, stream_of(stream)>>>(
      static_cast<const double*>(a.t.data), static_cast<float*>(a.y.data), timesteps, half);
  check_launch("sinusoid");
}

}  // namespace ballast::ops::cuda
