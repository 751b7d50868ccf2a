#include "ops/kernels/map_kernel.cuh"
#include "ops/silu_cuda.h"
#include "ops/silu_kernel.cuh"

namespace ballast::ops::cuda {
namespace {

// Element by element (map_kernel.cuh).
struct Forward {
  static __device__ __forceinline__ float of(float x) { return silu_of(x); }
};

// With e = e^-x: s (1 - s) = (e s) s, exact also where s rounds to 1. Where e overflows s is 0, and
// so must be the product.
struct Backward {
  static __device__ __forceinline__ float of(float x, float dy) {
    const float e = expf(-x);
    const float s = 1.0f / (e + 1.0f);
    return dy * (s + x * (fminf(e, 3.402823466e38f) * s * s));
  }
};

}  // namespace

void silu(const Silu& a, void* stream) {
  map_rows<Forward>(a.x, a.y, stream_of(stream));
  check_launch("silu");
}

void silu_backward(const SiluBackward& a, void* stream) {
  map_rows<Backward>(a.x, a.dy, a.dx, stream_of(stream));
  check_launch("silu_backward");
}

}  // namespace ballast::ops::cuda
