#include "ops/ema.h"
#include "ops/kernels/elementwise.h"

namespace ballast::ops::cpu::BALLAST_ISA {

using simd::BALLAST_ISA::with_dtype;

void ema(const Ema& a, ThreadPool& pool) {
  const float add = static_cast<float>(1 - a.decay);
  auto* shadow = reinterpret_cast<float*>(a.shadow.data);
  with_dtype<DType::f32, DType::bf16>(a.p.dtype, [&](auto t) {
    constexpr DType P = t;
    const auto* p = reinterpret_cast<const Element<P>*>(a.p.data);
    each_vector(pool, a.p.shape.elements(), [=](std::int64_t i, std::int64_t n) {
      const f32v old = read<DType::f32>(shadow + i, n);
      write<DType::f32>(shadow + i, old + (read<P>(p + i, n) - old) * add, n);
    });
  });
}

}  // namespace ballast::ops::cpu::BALLAST_ISA
