#pragma once

// What linear.cpp hands to the vector kernels of linear_cpu.cpp: pointers and sizes that were
// checked and a cut into calls that was decided. Plain data, so that kernel sources share no inline
// function.

#include <cstddef>
#include <cstdint>

#include "core/dtype.h"
#include "core/simd.h"
#include "ops/linear/weight_scale.h"

namespace ballast {
class ThreadPool;
}

namespace ballast::ops::cpu {

// The widest panel of output columns of one sgemm call. On a Neoverse N1, 256-row calls reach 95 %
// of one whole sgemm with panels of 256 columns, 97 % with 512 and 98 % with 768.
inline constexpr std::int64_t kPanel = 512;
// The longest contraction of one sgemm call. Lengths of 352 to 16384 are equally fast; this one
// keeps expanded weights at 2 MiB whatever the layer's size.
inline constexpr std::int64_t kDepth = 1024;
// Floats added to scratch rows, which otherwise start a multiple of 4096 bytes apart and share
// cache sets.
inline constexpr std::int64_t kRowPad = 16;

struct Matrix {  // rows of neighbouring elements
  const std::byte* data = nullptr;
  std::int64_t stride = 0;  // elements from row to row
  DType dtype = DType::f32;
};

// Scratch of one worker: floats from the start of its share.
struct Scratch {
  float* data = nullptr;
  std::int64_t stride = 0;  // from worker to worker
  std::int64_t first = 0, second = 0, third = 0;
};

// out[R, C] (+)= alpha * in[R, D] op(w) + bias, or gelu of that
struct PanelProduct {
  Matrix in = {}, w = {};
  bool transposed = false;  // op(w) = w^T and w is [C, D]; otherwise w is [D, C]
  bool expand_w = false;    // weights go through scratch, where they are f32 and scaled
  WeightScale scale = {};
  Matrix bias = {};  // one row of C elements, or no data
  std::byte* out = nullptr;
  std::int64_t out_stride = 0;
  DType out_dtype = DType::f32;
  std::int64_t rows = 0, columns = 0, depth = 0;
  std::int64_t panel = 0;   // columns of one call
  std::int64_t quanta = 1;  // row quanta of one task, or pieces of lines
  std::int64_t line = 0;    // rows after which cutting begins anew; 0: never
  float alpha = 1;
  bool accumulate = false;
  bool gelu = false;
  std::byte* pre = nullptr;  // [R, C] of out's type that gets what gelu is applied to, or none
  std::int64_t pre_stride = 0;
  Scratch scratch = {};  // first: weights, second: in, third: out
};

// dw[N, K] += alpha * dy[R, N]^T x[R, K];  dbias[N] += alpha * column sums of dy
struct OuterProduct {
  Matrix x = {}, dy = {};
  float* dw = nullptr;
  std::int64_t dw_stride = 0;
  float* dbias = nullptr;  // or none
  std::int64_t rows = 0, n = 0, k = 0;
  std::int64_t panel_n = 0, panel_k = 0;
  float alpha = 1;
  Scratch scratch = {};  // first: dy, second: x
};

BALLAST_PER_ISA(void panel_product(const PanelProduct& a, ThreadPool& pool))
BALLAST_PER_ISA(void outer_product(const OuterProduct& a, ThreadPool& pool))

}  // namespace ballast::ops::cpu
