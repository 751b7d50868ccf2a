#include "ops/kernels/row_simd.h"
#include "ops/silu.h"

namespace ballast::ops::cpu::BALLAST_ISA {

namespace v = simd::BALLAST_ISA;
using v::f32v;

void silu(const Silu& a, ThreadPool& pool) {
  v::map_rows(a.x, a.y, pool, [](f32v x) { return x / (v::exp(-x) + 1.0f); });
}

// With e = e^-x: s (1 - s) = (e s) s, exact also where s rounds to 1. Where e overflows s is 0, and
// so must be the product.
void silu_backward(const SiluBackward& a, ThreadPool& pool) {
  v::map_rows(a.x, a.dy, a.dx, pool, [](f32v x, f32v dy) {
    const f32v e = v::exp(-x);
    const f32v s = 1.0f / (e + 1.0f);
    return dy * (s + x * (v::min(e, v::splat(__FLT_MAX__)) * s * s));
  });
}

}  // namespace ballast::ops::cpu::BALLAST_ISA
