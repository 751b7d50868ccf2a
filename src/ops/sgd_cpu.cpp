#include "ops/kernels/parameter_simd.h"
#include "ops/sgd.h"

namespace ballast::ops::cpu::BALLAST_ISA {

using simd::BALLAST_ISA::with_dtype;

void sgd(const Sgd& a, ThreadPool& pool) {
  const float scale = scale_of(a.grad_scale);
  const float momentum = static_cast<float>(a.options.momentum);
  const float decay = static_cast<float>(a.options.weight_decay);
  const float rate = static_cast<float>(a.learning_rate);
  with_writer(a.p, a.rounding, [&](auto make_writer) {
    with_dtype<DType::f32, DType::bf16>(a.b ? a.b.dtype : DType::f32, [&](auto state) {
      with_dtype<DType::f32, DType::bf16>(a.g.dtype, [&](auto gradient_type) {
        constexpr DType S = state, G = gradient_type;
        auto* b = reinterpret_cast<Element<S>*>(a.b.data);
        const auto* g = reinterpret_cast<const Element<G>*>(a.g.data);
        each_range(pool, a.p.shape.elements(), [&](std::int64_t begin, std::int64_t end) {
          auto p = make_writer();
          each_vector(begin, end, [&](std::int64_t i, std::int64_t n) {
            const f32v old = p.read(i, n);
            f32v step = read<G>(g + i, n) * scale + old * decay;
            if (b != nullptr) {
              step = read<S>(b + i, n) * momentum + step;
              write<S>(b + i, step, n);
            }
            p.write(i, n, old, step * -rate);
          });
        });
      });
    });
  });
}

}  // namespace ballast::ops::cpu::BALLAST_ISA
