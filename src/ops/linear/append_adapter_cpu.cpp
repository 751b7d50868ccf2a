#include "ops/kernels/elementwise.h"
#include "ops/linear/append_adapter.h"

namespace ballast::ops::cpu::BALLAST_ISA {

using simd::BALLAST_ISA::with_dtype;

void append_adapter(const AppendAdapter& a, ThreadPool* pool) {
  const std::int64_t rows = a.to.shape[0], columns = a.to.shape[1];
  const std::int64_t from_rows = a.from.shape[0], from_columns = a.from.shape[1];
  if (rows * columns == 0) return;
  with_dtype<DType::f32, DType::bf16>(a.from.dtype, [&](auto tf) {
    with_dtype<DType::f32, DType::bf16>(a.to.dtype, [&](auto tt) {
      constexpr DType F = tf, T = tt;
      const auto* from = reinterpret_cast<const Element<F>*>(a.from.data);
      auto* to = reinterpret_cast<Element<T>*>(a.to.data);
      const auto row = [&](std::int64_t r) {
        Element<T>* const out = to + r * a.to.strides[0];
        const std::int64_t begin = r < from_rows ? a.column : columns;
        const std::int64_t end = r < from_rows ? a.column + from_columns : columns;
        for (std::int64_t j = 0; j < begin; ++j) out[j] = 0;  // all bits 0 in both types
        each_vector(begin, end, [&](std::int64_t j, std::int64_t n) {
          const Element<F>* const in = from + r * a.from.strides[0] + (j - a.column);
          write<T>(out + j, read<F>(in, n) * a.factor, n);
        });
        for (std::int64_t j = end; j < columns; ++j) out[j] = 0;
      };
      if (!pool) {
        for (std::int64_t r = 0; r < rows; ++r) row(r);
        return;
      }
      const std::int64_t some = kElementsPerTask / columns + 1;
      pool->parallel((rows + some - 1) / some, [&](std::int64_t task, int) {
        const std::int64_t end = (task + 1) * some < rows ? (task + 1) * some : rows;
        for (std::int64_t r = task * some; r < end; ++r) row(r);
      });
    });
  });
}

}  // namespace ballast::ops::cpu::BALLAST_ISA
