#include "ops/add.h"
#include "ops/kernels/elementwise.h"

namespace ballast::ops::cpu::BALLAST_ISA {

using simd::BALLAST_ISA::with_dtype;

void add_into(const AddInto& a, ThreadPool& pool) {
  const std::int64_t rows = a.y.shape[0], columns = a.y.shape[1];
  const std::int64_t x_step = a.x.strides[0], y_step = a.y.strides[0];
  const float alpha = a.alpha;
  with_dtype<DType::f32, DType::bf16>(a.x.dtype, [&](auto tx) {
    with_dtype<DType::f32, DType::bf16>(a.y.dtype, [&](auto ty) {
      constexpr DType X = tx, Y = ty;
      const auto* x = reinterpret_cast<const Element<X>*>(a.x.data);
      auto* y = reinterpret_cast<Element<Y>*>(a.y.data);
      const auto add = [=](const Element<X>* from, Element<Y>* to) {
        return [=](std::int64_t i, std::int64_t n) {
          write<Y>(to + i, read<Y>(to + i, n) + read<X>(from + i, n) * alpha, n);
        };
      };
      if (rows == 1) return each_vector(pool, columns, add(x, y));
      // Whole rows per task, about as many elements as elsewhere.
      const std::int64_t some = columns > 0 ? kElementsPerTask / columns + 1 : rows;
      pool.parallel((rows + some - 1) / some, [&](std::int64_t task, int) {
        const std::int64_t end = (task + 1) * some < rows ? (task + 1) * some : rows;
        for (std::int64_t r = task * some; r < end; ++r) {
          each_vector(0, columns, add(x + r * x_step, y + r * y_step));
        }
      });
    });
  });
}

}  // namespace ballast::ops::cpu::BALLAST_ISA
