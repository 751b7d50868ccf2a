#include "ops/gelu.h"
#include "ops/gelu_simd.h"
#include "ops/kernels/row_simd.h"

namespace ballast::ops::cpu::BALLAST_ISA {

namespace v = simd::BALLAST_ISA;
using v::f32v;

void gelu(const Gelu& a, ThreadPool& pool) {
  v::map_rows(a.x, a.y, pool, [](f32v x) { return gelu_of(x); });
}

// With e = e^-2u and s = 1 / (1 + e): (1 - q^2) / 4 = s (1 - s) = (e s) s, exact also where s
// rounds to 1. Where e overflows s is 0, and so must be the product.
void gelu_backward(const GeluBackward& a, ThreadPool& pool) {
  v::map_rows(a.x, a.dy, a.dx, pool, [](f32v x, f32v dy) {
    const f32v e = exp_minus_2u(x);
    const f32v s = 1.0f / (e + 1.0f);
    const f32v slope = v::min(e, v::splat(__FLT_MAX__)) * s * s;
    return dy * (s + x * slope * (x * x * 0.134145f + 1.0f) * kTwoK);
  });
}

}  // namespace ballast::ops::cpu::BALLAST_ISA
