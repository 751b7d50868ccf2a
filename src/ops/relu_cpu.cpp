#include "ops/kernels/row_simd.h"
#include "ops/relu.h"

namespace ballast::ops::cpu::BALLAST_ISA {

namespace v = simd::BALLAST_ISA;
using v::f32v;

void relu(const Relu& a, ThreadPool& pool) {
  v::map_rows(a.x, a.y, pool, [](f32v x) { return v::max(x, f32v{}); });
}

void relu_backward(const ReluBackward& a, ThreadPool& pool) {
  v::map_rows(a.x, a.dy, a.dx, pool, [](f32v x, f32v dy) { return x > 0.0f ? dy : f32v{}; });
}

}  // namespace ballast::ops::cpu::BALLAST_ISA
