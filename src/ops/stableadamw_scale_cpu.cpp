#include "ops/kernels/ordered_sum_simd.h"
#include "ops/kernels/parameter_simd.h"
#include "ops/stableadamw_scale.h"

namespace ballast::ops::cpu::BALLAST_ISA {

using simd::BALLAST_ISA::with_dtype;

void stableadamw_scale(const StableAdamWScale& a, const AdamWCoefficients& c, ThreadPool& pool) {
  const std::int64_t n = a.g.shape.elements();
  const float scale = scale_of(a.grad_scale);
  const f32v floor = simd::BALLAST_ISA::splat(c.eps * c.eps);
  double sum = 0;
  with_dtype<DType::f32, DType::bf16>(a.v.dtype, [&](auto state) {
    with_dtype<DType::f32, DType::bf16>(a.g.dtype, [&](auto gradient_type) {
      constexpr DType S = state, G = gradient_type;
      const auto* v = reinterpret_cast<const Element<S>*>(a.v.data);
      const auto* g = reinterpret_cast<const Element<G>*>(a.g.data);
      add_ordered(pool, n, &sum, [=](std::int64_t begin, std::int64_t end) {
        return square_sum(begin, end, [=](std::int64_t i, std::int64_t m) {
          const f32v x = read<G>(g + i, m) * scale;
          const f32v now = read<S>(v + i, m) * c.keep_v + x * x * c.add_v;
          // With eps = 0 this would be 0 / 0 where there never was a gradient.
          return x == 0.0f ? f32v{} : x / sqrt(now > floor ? now : floor);
        });
      });
    });
  });
  const double rms = __builtin_sqrt(sum / static_cast<double>(n));
  const double rate = rms > 1 ? a.learning_rate / rms : a.learning_rate;
  auto* rates = reinterpret_cast<float*>(a.rates.data);
  rates[0] = static_cast<float>(rate);
  rates[1] = static_cast<float>(1 - rate * a.options.weight_decay);
}

}  // namespace ballast::ops::cpu::BALLAST_ISA
