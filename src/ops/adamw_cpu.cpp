#include <cmath>

#include "ops/adamw.h"
#include "ops/parameter_simd.h"

namespace ballast::ops::cpu::BALLAST_ISA {

using simd::BALLAST_ISA::with_dtype;

namespace {

struct Coefficients {
  float scale, decay, keep_m, add_m, keep_v, add_v, rate, unbias_v, eps;
};

Coefficients coefficients(const AdamW& a) {
  const AdamWOptions& o = a.options;
  const double k = static_cast<double>(a.step);
  const double power1 = ::pow(o.beta1, k), power2 = ::pow(o.beta2, k);
  double beta1 = o.beta1, beta2 = o.beta2, rate = a.learning_rate, unbias_v = 1;
  if (o.debias == Debias::betas) {
    beta1 = (power1 - beta1) / (power1 - 1);
    beta2 = (power2 - beta2) / (power2 - 1);
  } else {
    rate /= 1 - power1;
    unbias_v = 1 / ::sqrt(1 - power2);
  }
  return {.scale = scale_of(a.grad_scale),
          .decay = static_cast<float>(1 - a.learning_rate * o.weight_decay),
          .keep_m = static_cast<float>(beta1),
          .add_m = static_cast<float>(1 - beta1),
          .keep_v = static_cast<float>(beta2),
          .add_v = static_cast<float>(1 - beta2),
          .rate = static_cast<float>(rate),
          .unbias_v = static_cast<float>(unbias_v),
          .eps = static_cast<float>(o.eps)};
}

}  // namespace

void adamw(const AdamW& a, ThreadPool& pool) {
  const Coefficients c = coefficients(a);
  with_writer(a.p, a.rounding, [&](auto make_writer) {
    with_dtype<DType::f32, DType::bf16>(a.m.dtype, [&](auto state) {
      with_dtype<DType::f32, DType::bf16>(a.g.dtype, [&](auto gradient_type) {
        constexpr DType S = state, G = gradient_type;
        auto* m = reinterpret_cast<Element<S>*>(a.m.data);
        auto* v = reinterpret_cast<Element<S>*>(a.v.data);
        const auto* g = reinterpret_cast<const Element<G>*>(a.g.data);
        each_stretch(pool, a.p.shape.elements(), [&](std::int64_t begin, std::int64_t end) {
          auto p = make_writer();
          each_vector(begin, end, [&](std::int64_t i, std::int64_t n) {
            const f32v gradient = read<G>(g + i, n) * c.scale;
            const f32v m_new = read<S>(m + i, n) * c.keep_m + gradient * c.add_m;
            const f32v v_new = read<S>(v + i, n) * c.keep_v + gradient * gradient * c.add_v;
            const f32v step = m_new / (sqrt(v_new) * c.unbias_v + c.eps);
            p.write(i, n, p.read(i, n) * c.decay, step * -c.rate);
            write<S>(m + i, m_new, n);
            p.template write_state<S>(v, i, n, v_new);
          });
        });
      });
    });
  });
}

}  // namespace ballast::ops::cpu::BALLAST_ISA
