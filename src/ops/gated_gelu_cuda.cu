#include "ops/gated_gelu_cuda.h"
#include "ops/gelu_cuda.cuh"
#include "ops/map_kernel.cuh"

namespace ballast::ops::cuda {
namespace {

// Forward: element by element (map_kernel.cuh).
struct Forward {
  static __device__ __forceinline__ float of(float a, float b) { return gelu_of(a) * b; }
};

// Backward reads three operands and writes two: one thread an element, striding through them. Bound
// by memory, and neighbouring threads touch neighbouring elements.
constexpr int kThreads = 256;

__global__ void backward(Matrix a, Matrix b, Matrix dz, Matrix da, Matrix db, std::int64_t rows,
                         std::int64_t columns) {
  const std::int64_t all = rows * columns, step = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < all; i += step) {
    const std::int64_t r = i / columns, c = i % columns;
    const float va = read(a, r, c), vb = read(b, r, c), vz = read(dz, r, c);
    const float e = exp_minus_2u(va), s = 1.0f / (e + 1.0f);
    const float slope = fminf(e, 3.402823466e38f) * s * s;
    write(da, r, c, vz * vb * (s + va * slope * (va * va * 0.134145f + 1.0f) * kTwoK));
    write(db, r, c, vz * gelu_of(va));
  }
}

}  // namespace

void gated_gelu(const GatedGelu& x, void* stream) {
  map_rows<Forward>(x.a, x.b, x.z, stream_of(stream));
  check_launch("gated_gelu");
}

void gated_gelu_backward(const GatedGeluBackward& x, void* stream) {
  const std::int64_t rows = x.a.shape[0], columns = x.a.shape[1];
  if (rows * columns == 0) return;
  backward<<<some_blocks(rows * columns, kThreads), kThreads, 0, stream_of(stream)>>>(
      matrix(x.a), matrix(x.b), matrix(x.dz), matrix(x.da), matrix(x.db), rows, columns);
  check_launch("gated_gelu_backward");
}

}  // namespace ballast::ops::cuda
