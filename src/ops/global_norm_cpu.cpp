#include "ops/global_norm.h"
#include "ops/kernels/ordered_sum_simd.h"

namespace ballast::ops::cpu::BALLAST_ISA {

using simd::BALLAST_ISA::with_dtype;

void sum_squares(const SumSquares& a, ThreadPool& pool) {
  auto* total = reinterpret_cast<double*>(a.sum.data);
  with_dtype<DType::f32, DType::bf16>(a.x.dtype, [&](auto t) {
    constexpr DType T = t;
    const auto* x = reinterpret_cast<const Element<T>*>(a.x.data);
    const auto piece = [=](std::int64_t begin, std::int64_t end) {
      return square_sum(begin, end,
                        [=](std::int64_t i, std::int64_t n) { return read<T>(x + i, n); });
    };
    add_ordered<kGroupBlocks>(pool, a.x.shape.elements(), total, piece);
  });
}

void clip_factor(const ClipFactor& a) {
  const double norm = __builtin_sqrt(*reinterpret_cast<const double*>(a.sum.data));
  const double ratio = a.max_norm / (norm + 1e-6);
  const double factor = a.max_norm <= 0 || ratio > 1 ? 1 : ratio;  // a NaN ratio stays one
  *reinterpret_cast<float*>(a.factor.data) = static_cast<float>(factor);
  if (a.norm.data != nullptr) *reinterpret_cast<float*>(a.norm.data) = static_cast<float>(norm);
}

void scale_by(const ScaleBy& a, ThreadPool& pool) {
  const float factor = *reinterpret_cast<const float*>(a.factor.data);
  with_dtype<DType::f32, DType::bf16>(a.x.dtype, [&](auto t) {
    constexpr DType T = t;
    auto* x = reinterpret_cast<Element<T>*>(a.x.data);
    each_vector(pool, a.x.shape.elements(), [=](std::int64_t i, std::int64_t n) {
      write<T>(x + i, read<T>(x + i, n) * factor, n);
    });
  });
}

void limit_factor(const LimitFactor& a, ThreadPool& pool) {
  const auto* ga = reinterpret_cast<const Element<DType::f32>*>(a.ga.data);
  const auto* gb = reinterpret_cast<const Element<DType::f32>*>(a.gb.data);
  double sum = 0;
  add_ordered(pool, a.ga.shape.elements(), &sum, [=](std::int64_t begin, std::int64_t end) {
    return product_sum(begin, end, [=](std::int64_t i, std::int64_t n) {
      return Factors{read<DType::f32>(ga + i, n), read<DType::f32>(gb + i, n)};
    });
  });
  // Rounding may leave a sum below zero where the norm is nearly that: no norm is above the limit.
  const double norm = a.scale * __builtin_sqrt(sum);
  const double factor = norm > a.max_norm ? __builtin_sqrt(a.max_norm / norm) : 1;
  *reinterpret_cast<float*>(a.factor.data) = static_cast<float>(factor);
}

}  // namespace ballast::ops::cpu::BALLAST_ISA
