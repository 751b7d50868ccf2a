#include "ops/adamw.h"
#include "ops/kernels/parameter_simd.h"

namespace ballast::ops::cpu::BALLAST_ISA {

using simd::BALLAST_ISA::with_dtype;

void adamw(const AdamW& a, ThreadPool& pool) {
  AdamWCoefficients c = adamw_coefficients(a.options, a.step, a.learning_rate);
  if (a.rates.data != nullptr) {
    const auto* rates = reinterpret_cast<const float*>(a.rates.data);
    c.rate = rates[0];
    c.decay = rates[1];
  }
  const float scale = scale_of(a.grad_scale);
  with_writer(a.p, a.rounding, [&](auto make_writer) {
    with_dtype<DType::f32, DType::bf16>(a.m.dtype, [&](auto state) {
      with_dtype<DType::f32, DType::bf16>(a.g.dtype, [&](auto gradient_type) {
        constexpr DType S = state, G = gradient_type;
        auto* m = reinterpret_cast<Element<S>*>(a.m.data);
        auto* v = reinterpret_cast<Element<S>*>(a.v.data);
        const auto* g = reinterpret_cast<const Element<G>*>(a.g.data);
        each_range(pool, a.p.shape.elements(), [&](std::int64_t begin, std::int64_t end) {
          auto p = make_writer();
          each_vector(begin, end, [&](std::int64_t i, std::int64_t n) {
            const f32v gradient = read<G>(g + i, n) * scale;
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
