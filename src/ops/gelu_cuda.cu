#include "ops/gelu_cuda.cuh"
#include "ops/gelu_cuda.h"
#include "ops/map_kernel.cuh"

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

}  // namespace

void gelu(const Gelu& a, void* stream) {
  map_rows<Forward>(a.x, a.y, stream_of(stream));
  check_launch("gelu");
}

void gelu_backward(const GeluBackward& a, void* stream) {
  map_rows<Backward>(a.x, a.dy, a.dx, stream_of(stream));
  check_launch("gelu_backward");
}

}  // namespace ballast::ops::cuda
