#pragma once

// How the CUDA side of ops/linear/linear.h cuts a call and lays out its scratch: a function of the
// call's LinearSize, so that a plan can be made on a machine without a GPU.

#include <algorithm>

#include "ops/linear/linear.h"
#include "ops/linear/linear_cuda.h"

namespace ballast::ops::cuda {

inline constexpr std::int64_t kWorkspaceAlignment = 256;  // what cuBLASLt asks for its own
// Covers every algorithm that was seen; nearly all need nothing.
inline constexpr std::int64_t kLibraryWorkspace = 8 << 20;

// Rows that a product may read or write where they are.
inline bool in_sixteens(std::uintptr_t address, std::int64_t rows, std::int64_t row_stride,
                        DType dtype) {
  const auto size = static_cast<std::int64_t>(size_of(dtype));
  return address % 16 == 0 && (rows <= 1 || row_stride * size % 16 == 0);
}
// The shortest row that starts the next one at a multiple of 16 bytes.
inline std::int64_t packed_stride(std::int64_t width, DType dtype) {
  const auto step = 16 / static_cast<std::int64_t>(size_of(dtype));
  return (width + step - 1) / step * step;
}

// Tensor cores multiply bf16: where one of the activations has no more digits, the product's
// operands need none. f32 activations (the time embedding, the head) are multiplied in f32,
// whatever the weights are stored as.
DType multiplied_type(DType x, DType y);
// What such a product costs.
Work product_work(Device device, DType x, DType y);

// In wide bf16 products all unsplit algorithms of cuBLASLt add along the contraction in the same
// order (measured from 16 to 32760 rows). Elsewhere, kernels that split the contraction inside a
// block exist.
constexpr bool any_algorithm(DType type, std::int64_t columns, std::int64_t depth) {
  constexpr std::int64_t kWide = 1024;
  return type == DType::bf16 && columns >= kWide && depth >= kWide;
}
// Whether one product gives gelu and what it is applied to (Linear::pre), by an algorithm that is
// neither's alone; elsewhere there are two.
inline bool one_product_for_both(const LinearSize& s) {
  return s.y == DType::bf16 && s.y_aligned && any_algorithm(DType::bf16, s.outputs, s.inputs);
}
// So many rows at once: products with two results slow down with many rows (H200, 5,136 to 13,824,
// ms: of 32,760 rows 7.40 at once and 7.20 in pieces; gelu alone 7.07, no gelu and a kernel for it
// 7.35; of 7,168 rows 1.56, 1.54 and 1.60).
constexpr std::int64_t products_for_both(std::int64_t rows) {
  constexpr std::int64_t kMax = 8192;
  return std::max<std::int64_t>(1, (rows + kMax - 1) / kMax);
}
constexpr std::int64_t rows_for_both(std::int64_t rows) {  // of each, whole quanta
  const std::int64_t products = products_for_both(rows);
  const std::int64_t quanta = (rows + kTokenQuantum - 1) / kTokenQuantum;
  return std::max<std::int64_t>(1, (quanta + products - 1) / products) * kTokenQuantum;
}

// Columns of the result that are made at once: all, except where weights are widened to f32 for
// them and would take more than kMaxWidened bytes.
inline constexpr std::int64_t kMaxWidened = 64 << 20;
std::int64_t columns_at_once(const LinearSize& s, bool forward);

LinearScratch forward_scratch(const LinearSize& s);
LinearScratch dx_scratch(const LinearSize& s);

// dw adds up the products of kTokenQuantum rows in order. Where it is narrow, one product is too
// small for the machine: several quanta are multiplied side by side into partial sums.
DwMethod dw_method(const LinearSize& s);
std::int64_t dw_group(const LinearSize& s);
LinearScratch dw_scratch(const LinearSize& s);

}  // namespace ballast::ops::cuda
