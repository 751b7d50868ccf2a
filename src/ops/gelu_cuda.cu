#include "ops/gelu_cuda.cuh"
#include "ops/gelu_cuda.h"
#include "ops/kernels/map_kernel.cuh"

namespace ballast::ops::cuda {
namespace {

// Element by element (map_kernel.cuh).

struct Forward {
  static __device__ __forceinline__ float of(float x) { return gelu_of(x); }
};

// With e = e^-2u and s = 1 / (1 + e): (1 - q^2) / 4 = s (1 - s) = (e s) s, exact also where s
// rounds to 1. Where e overflows s is 0, and so must be the product.
struct Backward {
  static __device__ __forceinline__ float of(float x, float dy) {
    const float e = exp_minus_2u(x);
    const float s = __fdividef(1.0f, e + 1.0f);
    const float slope = fminf(e, 3.402823466e38f) * s * s;
    return dy * (s + x * slope * (x * x * 0.134145f + 1.0f) * kTwoK);
  }
};

// Backward and forward of the same x, which is read once. Threads and rows as in map_kernel.cuh; y
// may be x and dx may be dy, since a thread has read what it overwrites.
template <class E>
__global__ void __launch_bounds__(kColumnThreads)
    both_eights(Matrix x, Matrix dy, Matrix dx, Matrix y, std::int64_t rows, std::int64_t columns) {
  const std::int64_t c = (std::int64_t{blockIdx.x} * kColumnThreads + threadIdx.x) * 8;
  if (c >= columns) return;
  const auto at = [&](const Matrix& m, std::int64_t row) {
    return static_cast<E*>(m.data) + row * m.step + c;
  };
  const auto apply = [&](const Eight<E>& a, const Eight<E>& b, std::int64_t row) {
    float p[8], q[8];
    a.unpack(p);
    b.unpack(q);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      q[i] = Backward::of(p[i], q[i]);
      p[i] = Forward::of(p[i]);
    }
    store_eight(at(dx, row), q);
    store_eight(at(y, row), p);
  };
  const std::int64_t next = gridDim.y;
  for (std::int64_t r = blockIdx.y; r < rows; r += 2 * next) {
    const bool second = r + next < rows;
    Eight<E> a[2], b[2];
    a[0].load_once(at(x, r));
    b[0].load_once(at(dy, r));
    if (second) {
      a[1].load_once(at(x, r + next));
      b[1].load_once(at(dy, r + next));
    }
    apply(a[0], b[0], r);
    if (second) apply(a[1], b[1], r + next);
  }
}

bool both_in_eights(const GeluBackward& a) {
  for (const View& v : {a.dy, a.dx, a.y}) {
    if (v.dtype != a.x.dtype || !in_eights(v)) return false;
  }
  return in_eights(a.x);
}

}  // namespace

void gelu(const Gelu& a, void* stream) {
  map_rows<Forward>(a.x, a.y, stream_of(stream));
  check_launch("gelu");
}

void gelu_backward(const GeluBackward& a, void* stream) {
  const std::int64_t rows = a.x.shape[0], columns = a.x.shape[1];
  if (a.y && both_in_eights(a) && rows * columns > 0) {
    with_activation(a.x.dtype, [&](auto tag) {
      using E = typename decltype(tag)::type;
      both_eights<E><<<column_grid(rows, columns), kColumnThreads, 0, stream_of(stream)>>>(
          matrix(a.x), matrix(a.dy), matrix(a.dx), matrix(a.y), rows, columns);
    });
  } else {
    map_rows<Backward>(a.x, a.dy, a.dx, stream_of(stream));
    if (a.y) map_rows<Forward>(a.x, a.y, stream_of(stream));
  }
  check_launch("gelu_backward");
}

}  // namespace ballast::ops::cuda
