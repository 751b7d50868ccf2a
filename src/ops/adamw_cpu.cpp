#include <cmath>

#include "ops/adamw.h"
#include "ops/elementwise.h"

namespace ballast::ops::cpu::BALLAST_ISA {
namespace {

using simd::BALLAST_ISA::with_dtype;

inline f32v sqrt(f32v x) {
  f32v y = {};
  for (int i = 0; i < kLanes; ++i) y[i] = __builtin_sqrtf(x[i]);
  return y;
}

}  // namespace

void adamw(const AdamW& a, ThreadPool& pool) {
  const AdamWOptions& o = a.options;
  const double k = static_cast<double>(a.step);
  const float scale = a.grad_scale.data ? *reinterpret_cast<const float*>(a.grad_scale.data) : 1.0f;
  const float decay = static_cast<float>(1 - a.learning_rate * o.weight_decay);
  const float keep_m = static_cast<float>(o.beta1), add_m = static_cast<float>(1 - o.beta1);
  const float keep_v = static_cast<float>(o.beta2), add_v = static_cast<float>(1 - o.beta2);
  const float rate = static_cast<float>(a.learning_rate / (1 - ::pow(o.beta1, k)));
  const float unbias_v = static_cast<float>(1 / ::sqrt(1 - ::pow(o.beta2, k)));
  const float eps = static_cast<float>(o.eps);

  auto* p = reinterpret_cast<float*>(a.p.data);
  auto* m = reinterpret_cast<float*>(a.m.data);
  auto* v = reinterpret_cast<float*>(a.v.data);
  with_dtype<DType::f32, DType::bf16>(a.g.dtype, [&](auto t) {
    constexpr DType G = t;
    const auto* g = reinterpret_cast<const Element<G>*>(a.g.data);
    each_vector(pool, a.p.shape.elements(), [=](std::int64_t i, std::int64_t n) {
      const f32v gradient = read<G>(g + i, n) * scale;
      const f32v m_new = read<DType::f32>(m + i, n) * keep_m + gradient * add_m;
      const f32v v_new = read<DType::f32>(v + i, n) * keep_v + gradient * gradient * add_v;
      const f32v step = m_new / (sqrt(v_new) * unbias_v + eps);
      write<DType::f32>(p + i, read<DType::f32>(p + i, n) * decay - step * rate, n);
      write<DType::f32>(m + i, m_new, n);
      write<DType::f32>(v + i, v_new, n);
    });
  });
}

}  // namespace ballast::ops::cpu::BALLAST_ISA
