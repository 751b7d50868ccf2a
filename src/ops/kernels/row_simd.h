#pragma once

// What the row-wise vector kernels share; included by *_cpu.cpp only. A kernel sees every operand
// as f32, kChunk elements of a row at a time: fetch() converts (or points into the row when nothing
// has to be converted) and pads with zeros to whole vectors; target() and put() do the same for
// results. So there is one loop per formula, over whole vectors, for all dtypes and widths.
// Operands are views of rank 2 with inner stride 1; any row stride.

#include <cstdint>
#include <cstring>

#include "core/simd.h"
#include "core/simd_convert.h"
#include "core/tensor.h"
#include "core/thread_pool.h"
#include "ops/kernels/token_quantum.h"

namespace ballast::simd::BALLAST_ISA {

inline constexpr std::int64_t kChunk = 256;  // five f32 chunks take 5 KiB of the first-level cache
inline constexpr std::int64_t kPanel = 128;  // columns of one task in sums over rows
inline constexpr std::int64_t kTaskElements = 32768;  // below some 10 us a thread is not woken
alignas(64) inline constexpr float kZeros[kChunk] = {};

inline std::int64_t least(std::int64_t a, std::int64_t b) { return a < b ? a : b; }
inline std::int64_t most(std::int64_t a, std::int64_t b) { return a > b ? a : b; }
inline std::int64_t padded(std::int64_t n) { return (n + kLanes - 1) / kLanes * kLanes; }

struct InRow {
  const std::byte* data = nullptr;  // null: a row of zeros
  DType dtype = DType::f32;
};
struct OutRow {
  std::byte* data = nullptr;
  DType dtype = DType::f32;
};

inline std::int64_t row_offset(const Shape& strides, DType t, std::int64_t r) {
  return r * strides.begin()[0] * static_cast<std::int64_t>(t == DType::f32 ? 4 : 2);
}
inline InRow in_row(const ConstTensorView& v, std::int64_t r) {
  return {v.data + row_offset(v.strides, v.dtype, r), v.dtype};
}
inline OutRow out_row(const TensorView& v, std::int64_t r) {
  return {v.data + row_offset(v.strides, v.dtype, r), v.dtype};
}
// The row of a table [T, C] that token r uses: row 0 without an index, zeros without a table.
inline InRow table_row(const ConstTensorView& table, const ConstTensorView& index, std::int64_t r) {
  if (!table.data) return {};
  return in_row(table, index.data ? reinterpret_cast<const std::int32_t*>(index.data)[r] : 0);
}

// The conversions of one chunk are functions of their own: inlined, they would crowd the loops
// around them and lose their constants from the registers.
[[gnu::noinline]] inline void convert_in(InRow row, std::int64_t c, std::int64_t n, float* to) {
  with_dtype<DType::f32, DType::bf16, DType::f16>(row.dtype, [&](auto tag) {
    constexpr DType T = tag;
    const Element<T>* p = reinterpret_cast<const Element<T>*>(row.data) + c;
    std::int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) store(to + i, load_f32<T>(p + i));
    if (i < n) store(to + i, load_f32_partial<T>(p + i, n - i));
  });
}
[[gnu::noinline]] inline void convert_out(const float* from, OutRow row, std::int64_t c,
                                          std::int64_t n) {
  with_dtype<DType::f32, DType::bf16>(row.dtype, [&](auto tag) {
    constexpr DType T = tag;
    Element<T>* p = reinterpret_cast<Element<T>*>(row.data) + c;
    std::int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) store_f32<T>(p + i, load(from + i));
    if (i < n) store_f32_partial<T>(p + i, load(from + i), n - i);
  });
}

// Elements [c, c + n) as f32, n <= kChunk, with zeros up to padded(n): in the row itself when
// nothing has to be converted, else in tmp.
inline const float* fetch(InRow row, std::int64_t c, std::int64_t n, float* tmp) {
  if (!row.data) return kZeros;
  if (row.dtype == DType::f32 && n % kLanes == 0) {
    return reinterpret_cast<const float*>(row.data) + c;
  }
  convert_in(row, c, n, tmp);
  return tmp;
}

// Where elements [c, c + n) of a result are computed, up to padded(n): the row itself or tmp.
inline float* target(OutRow row, std::int64_t c, std::int64_t n, float* tmp) {
  if (row.dtype != DType::f32 || n % kLanes != 0) return tmp;
  return reinterpret_cast<float*>(row.data) + c;
}
// Brings home what was computed in target().
inline void put(const float* from, OutRow row, std::int64_t c, std::int64_t n) {
  if (row.dtype != DType::f32 || n % kLanes != 0) convert_out(from, row, c, n);
}

// A sum over a row: four running sums hide the latency of addition, and the order depends on the
// width alone.
struct RowSum {
  f32v part[4] = {};
  float total() const { return reduce_add((part[0] + part[1]) + (part[2] + part[3])); }
};

// f(i, k) for the vectors of a chunk, i = 0, kLanes, ...; k in [0, 4) says which running sum to
// use.
template <class F>
inline void unrolled(std::int64_t n, F f) {
  std::int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    f(i, 0);
    f(i + kLanes, 1);
    f(i + 2 * kLanes, 2);
    f(i + 3 * kLanes, 3);
  }
  for (; i < n; i += kLanes) f(i, 0);
}

// f(c, n) for the chunks of a row.
template <class F>
inline void each_chunk(std::int64_t width, F f) {
  for (std::int64_t c = 0; c < width; c += kChunk) f(c, least(kChunk, width - c));
}

// f(r) for r in [begin, end), on all threads when there is enough to do; rows are independent.
template <class F>
inline void each_row(ThreadPool& pool, std::int64_t begin, std::int64_t end, std::int64_t width,
                     F f) {
  const std::int64_t block = most(1, kTaskElements / most(1, width));
  pool.parallel((end - begin + block - 1) / block, [&](std::int64_t task, int) {
    const std::int64_t first = begin + task * block;
    for (std::int64_t r = first; r < least(end, first + block); ++r) f(r);
  });
}

// f(begin, end) for the quanta of a call, in order. The first row of a call begins a quantum.
template <class F>
inline void each_quantum(std::int64_t rows, F f) {
  for (std::int64_t q = 0; q < rows; q += kTokenQuantum) f(q, least(rows, q + kTokenQuantum));
}

// sums[t, c] += sum of term over the rows r in [begin, end) with index[r] == t (all rows belong to
// t = 0 without an index), the rows in order from zero. term(r, c, n, partial) adds its elements
// [c, c + n), padded to whole vectors, to partial. Threads take columns, never rows.
template <class Term>
inline void add_column_sums(ThreadPool& pool, std::int64_t begin, std::int64_t end,
                            const ConstTensorView& index, const TensorView& sums, Term term) {
  const std::int64_t tables = sums.shape.begin()[0], width = sums.shape.begin()[1];
  const auto* of_row = reinterpret_cast<const std::int32_t*>(index.data);
  const std::int64_t panels = (width + kPanel - 1) / kPanel;
  const std::int64_t block = most(1, kTaskElements / (kPanel * most(1, end - begin)));
  pool.parallel((panels + block - 1) / block, [&](std::int64_t task, int) {
    for (std::int64_t p = task * block; p < least(panels, (task + 1) * block); ++p) {
      const std::int64_t c = p * kPanel, n = least(kPanel, width - c);
      for (std::int64_t t = 0; t < tables; ++t) {
        float partial[kPanel] = {};
        bool any = false;
        for (std::int64_t r = begin; r < end; ++r) {
          if ((of_row ? of_row[r] : 0) != t) continue;
          term(r, c, n, static_cast<float*>(partial));
          any = true;
        }
        if (!any) continue;
        float* out = reinterpret_cast<float*>(sums.data) + t * sums.strides.begin()[0] + c;
        for (std::int64_t i = 0; i < n; ++i) out[i] += partial[i];
      }
    }
  });
}

// y = f(x), element by element.
template <class F>
inline void map_rows(const ConstTensorView& x, const TensorView& y, ThreadPool& pool, F f) {
  const std::int64_t width = x.shape.begin()[1];
  each_row(pool, 0, x.shape.begin()[0], width, [&](std::int64_t r) {
    each_chunk(width, [&](std::int64_t c, std::int64_t n) {
      float tx[kChunk], ty[kChunk];
      const float* px = fetch(in_row(x, r), c, n, tx);
      float* py = target(out_row(y, r), c, n, ty);
      for (std::int64_t i = 0; i < n; i += kLanes) store(py + i, f(load(px + i)));
      put(py, out_row(y, r), c, n);
    });
  });
}

// z = f(x, y), element by element.
template <class F>
inline void map_rows(const ConstTensorView& x, const ConstTensorView& y, const TensorView& z,
                     ThreadPool& pool, F f) {
  const std::int64_t width = x.shape.begin()[1];
  each_row(pool, 0, x.shape.begin()[0], width, [&](std::int64_t r) {
    each_chunk(width, [&](std::int64_t c, std::int64_t n) {
      float tx[kChunk], ty[kChunk], tz[kChunk];
      const float* px = fetch(in_row(x, r), c, n, tx);
      const float* py = fetch(in_row(y, r), c, n, ty);
      float* pz = target(out_row(z, r), c, n, tz);
      for (std::int64_t i = 0; i < n; i += kLanes) store(pz + i, f(load(px + i), load(py + i)));
      put(pz, out_row(z, r), c, n);
    });
  });
}

}  // namespace ballast::simd::BALLAST_ISA
