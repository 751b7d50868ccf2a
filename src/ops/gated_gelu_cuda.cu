#include "ops/gated_gelu_cuda.h"
#include "ops/gelu_cuda.cuh"
#include "ops/kernels/map_kernel.cuh"

namespace ballast::ops::cuda {
namespace {

// Forward: element by element (map_kernel.cuh).
struct Forward {
  static __device__ __forceinline__ float of(float a, float b) { return gelu_of(a) * b; }
};

struct Gradients {
  float da, db;
};
__device__ __forceinline__ Gradients gradients_of(float a, float b, float dz) {
  const float e = exp_minus_2u(a), s = 1.0f / (e + 1.0f);
  const float slope = fminf(e, 3.402823466e38f) * s * s;
  return {dz * b * (s + a * slope * (a * a * 0.134145f + 1.0f) * kTwoK), dz * gelu_of(a)};
}

// Backward reads three operands and writes two, which may be the first two.
constexpr int kThreads = 256;

__global__ void backward_any(Matrix a, Matrix b, Matrix dz, Matrix da, Matrix db, std::int64_t rows,
                             std::int64_t columns) {
  const std::int64_t all = rows * columns, step = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < all; i += step) {
    const std::int64_t r = i / columns, c = i % columns;
    const Gradients g = gradients_of(read(a, r, c), read(b, r, c), read(dz, r, c));
    write(da, r, c, g.da);
    write(db, r, c, g.db);
  }
}

// Eight columns of a thread, as in map_kernel.cuh.
template <class E>
__global__ void __launch_bounds__(kColumnThreads)
    backward_eights(Matrix a, Matrix b, Matrix dz, Matrix da, Matrix db, std::int64_t rows,
                    std::int64_t columns) {
  const std::int64_t c = (std::int64_t{blockIdx.x} * kColumnThreads + threadIdx.x) * 8;
  if (c >= columns) return;
  const auto at = [&](const Matrix& m, std::int64_t row) {
    return static_cast<E*>(m.data) + row * m.step + c;
  };
  for (std::int64_t r = blockIdx.y; r < rows; r += gridDim.y) {
    Eight<E> xa, xb, xz;
    xa.load(at(a, r));
    xb.load(at(b, r));
    xz.load_once(at(dz, r));
    float va[8], vb[8], vz[8];
    xa.unpack(va);
    xb.unpack(vb);
    xz.unpack(vz);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const Gradients g = gradients_of(va[i], vb[i], vz[i]);
      va[i] = g.da;
      vb[i] = g.db;
    }
    store_eight(at(da, r), va);
    store_eight(at(db, r), vb);
  }
}

bool all_in_eights(const GatedGeluBackward& x) {
  for (const View& v : {x.b, x.dz, x.da, x.db}) {
    if (v.dtype != x.a.dtype || !in_eights(v)) return false;
  }
  return in_eights(x.a);
}

}  // namespace

void gated_gelu(const GatedGelu& x, void* stream) {
  map_rows<Forward>(x.a, x.b, x.z, stream_of(stream));
  check_launch("gated_gelu");
}

void gated_gelu_backward(const GatedGeluBackward& x, void* stream) {
  const std::int64_t rows = x.a.shape[0], columns = x.a.shape[1];
  if (rows * columns == 0) return;
  const Matrix a = matrix(x.a), b = matrix(x.b), dz = matrix(x.dz);
  const Matrix da = matrix(x.da), db = matrix(x.db);
  if (all_in_eights(x)) {
    with_activation(x.a.dtype, [&](auto tag) {
      using E = typename decltype(tag)::type;
      backward_eights<E><<<column_grid(rows, columns), kColumnThreads, 0, stream_of(stream)>>>(
          a, b, dz, da, db, rows, columns);
    });
  } else {
    backward_any<<<some_blocks(rows * columns, kThreads), kThreads, 0, stream_of(stream)>>>(
        a, b, dz, da, db, rows, columns);
  }
  check_launch("gated_gelu_backward");
}

}  // namespace ballast::ops::cuda
