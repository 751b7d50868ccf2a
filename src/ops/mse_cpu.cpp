#include "ops/mse.h"
#include "ops/ordered_sum_simd.h"

namespace ballast::ops::cpu::BALLAST_ISA {
namespace {

using simd::BALLAST_ISA::with_dtype;

// The weighted sum of one block; store(i, difference, n) writes the gradient where it is wanted.
template <DType P, class Store>
double block(const Mse& a, std::int64_t begin, std::int64_t end, Store&& store) {
  const auto* pred = reinterpret_cast<const Element<P>*>(a.pred.data);
  const auto* target = reinterpret_cast<const float*>(a.target.data);
  return a.weight * square_sum(begin, end, [&](std::int64_t i, std::int64_t n) {
           const f32v difference = read<P>(pred + i, n) - read<DType::f32>(target + i, n);
           store(i, difference, n);
           return difference;
         });
}

}  // namespace

void mse(const Mse& a, ThreadPool& pool) {
  const std::int64_t elements = a.pred.shape.elements();
  auto* loss = reinterpret_cast<double*>(a.loss.data);
  with_dtype<DType::f32, DType::bf16>(a.pred.dtype, [&](auto p) {
    constexpr DType P = p;
    if (a.dpred.data == nullptr) {
      add_ordered(pool, elements, loss, [&](std::int64_t begin, std::int64_t end) {
        return block<P>(a, begin, end, [](std::int64_t, f32v, std::int64_t) {});
      });
      return;
    }
    const float slope = static_cast<float>(2 * a.weight);
    with_dtype<DType::f32, DType::bf16>(a.dpred.dtype, [&](auto d) {
      constexpr DType D = d;
      auto* dpred = reinterpret_cast<Element<D>*>(a.dpred.data);
      add_ordered(pool, elements, loss, [&](std::int64_t begin, std::int64_t end) {
        return block<P>(a, begin, end, [=](std::int64_t i, f32v difference, std::int64_t n) {
          write<D>(dpred + i, difference * slope, n);
        });
      });
    });
  });
}

}  // namespace ballast::ops::cpu::BALLAST_ISA
