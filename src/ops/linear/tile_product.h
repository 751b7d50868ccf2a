#pragma once

// Products of matrices that lie in scratch memory, for kernel sources only (see core/simd.h). All
// matrices are row-major, with strides in elements and sizes padded by the caller, so there are no
// edges: rows of C are a multiple of kProductRows, columns a multiple of kProductColumns.
//
// Every element of C is one chain of multiply-adds over the depth, in order, that starts at zero or
// at C: its bits do not depend on the sizes of the matrices or on its place in them.

#include <cstdint>

#include "core/simd.h"

namespace ballast::ops::cpu::BALLAST_ISA {

using simd::BALLAST_ISA::f32v;
using simd::BALLAST_ISA::kLanes;

// One step keeps kProductRows x 2 vectors of C in registers: enough independent chains to hide the
// latency of a multiply-add (4 cycles, 2 per cycle), and registers left for A and B.
inline constexpr int kProductRows = kLanes == 16                          ? 8
                                    : kLanes == 8                         ? 6
                                    : simd::BALLAST_ISA::kRegisters == 32 ? 8
                                                                          : 4;
inline constexpr int kProductColumns = 2 * kLanes;
inline constexpr int kProductDepth = 4;  // the depth of A B is a multiple of this

enum class ProductA { plain, transposed };  // transposed: A is stored as [depth, rows]
enum class ProductC { set, add };

template <ProductA kA, ProductC kC>
inline void product_step(const float* a, std::int64_t a_stride, const float* b,
                         std::int64_t b_stride, float* c, std::int64_t c_stride,
                         std::int64_t depth) {
  using simd::BALLAST_ISA::load, simd::BALLAST_ISA::store;
  constexpr int kM = kProductRows;
  f32v c0[kM], c1[kM];
  for (int i = 0; i < kM; ++i) {
    c0[i] = kC == ProductC::add ? load(c + i * c_stride) : f32v{};
    c1[i] = kC == ProductC::add ? load(c + i * c_stride + kLanes) : f32v{};
  }
  if constexpr (kLanes > 4) {  // wide machines multiply by an element of memory
    for (std::int64_t k = 0; k < depth; ++k) {
      const f32v b0 = load(b + k * b_stride), b1 = load(b + k * b_stride + kLanes);
      for (int i = 0; i < kM; ++i) {
        const float x = kA == ProductA::plain ? a[i * a_stride + k] : a[k * a_stride + i];
        c0[i] += b0 * x;
        c1[i] += b1 * x;
      }
    }
  } else if constexpr (kA == ProductA::plain) {  // NEON multiplies by a lane of a register
    for (std::int64_t k = 0; k < depth; k += kProductDepth) {
      f32v x[kM];
      for (int i = 0; i < kM; ++i) x[i] = load(a + i * a_stride + k);
#pragma GCC unroll 4
      for (int kk = 0; kk < kProductDepth; ++kk) {
        const f32v b0 = load(b + (k + kk) * b_stride), b1 = load(b + (k + kk) * b_stride + kLanes);
        for (int i = 0; i < kM; ++i) {
          c0[i] += b0 * x[i][kk];
          c1[i] += b1 * x[i][kk];
        }
      }
    }
  } else {
    for (std::int64_t k = 0; k < depth; ++k) {
      f32v x[kM / 4];
      for (int i = 0; i < kM / 4; ++i) x[i] = load(a + k * a_stride + 4 * i);
      const f32v b0 = load(b + k * b_stride), b1 = load(b + k * b_stride + kLanes);
      for (int i = 0; i < kM; ++i) {
        c0[i] += b0 * x[i / 4][i % 4];
        c1[i] += b1 * x[i / 4][i % 4];
      }
    }
  }
  for (int i = 0; i < kM; ++i) {
    store(c + i * c_stride, c0[i]);
    store(c + i * c_stride + kLanes, c1[i]);
  }
}

// C = A B or C += A B; c is [rows, columns], b is [depth, columns], a is [rows, depth] or, when
// transposed, [depth, rows].
template <ProductA kA, ProductC kC>
inline void product(const float* a, std::int64_t a_stride, const float* b, std::int64_t b_stride,
                    float* c, std::int64_t c_stride, std::int64_t rows, std::int64_t columns,
                    std::int64_t depth) {
  for (std::int64_t j = 0; j < columns; j += kProductColumns) {  // a column panel of b stays in L1
    for (std::int64_t i = 0; i < rows; i += kProductRows) {
      product_step<kA, kC>(kA == ProductA::plain ? a + i * a_stride : a + i, a_stride, b + j,
                           b_stride, c + i * c_stride + j, c_stride, depth);
    }
  }
}

}  // namespace ballast::ops::cpu::BALLAST_ISA
