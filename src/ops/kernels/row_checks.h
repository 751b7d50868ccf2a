#pragma once

#include <string_view>

#include "core/tensor.h"

namespace ballast::ops {

// The checks at the head of every row-wise op. `what` names op and operand: "rms_norm: y".

// [rows, width], f32 or bf16, inner stride 1.
void check_rows(std::string_view what, const ConstTensorView& v, std::int64_t rows,
                std::int64_t width);
void check_rank_2(std::string_view what, const ConstTensorView& v);
// [width], f32, bf16 or f16, contiguous.
void check_parameter(std::string_view what, const ConstTensorView& v, std::int64_t width);
// [T, width], f32, bf16 or f16, inner stride 1; absent is fine.
void check_table(std::string_view what, const ConstTensorView& v, std::int64_t width);
// Exactly this shape, f32, inner stride 1: statistics and sums.
void check_f32(std::string_view what, const ConstTensorView& v, const Shape& shape);
// [rows] i32, contiguous; absent is fine.
void check_index(std::string_view what, const ConstTensorView& v, std::int64_t rows);
// Every entry of an index in CPU memory lies in [0, tables).
void check_index_range(std::string_view what, const ConstTensorView& v, std::int64_t tables);

// The leading dimensions as one: [..., C] seen as [R, C]. Fails when the rows are not evenly
// spaced.
TensorView as_rows(std::string_view what, const TensorView& v);
ConstTensorView as_rows(std::string_view what, const ConstTensorView& v);

// A vector [C] as a table of one row; anything else unchanged.
template <class View>
View as_table(const View& v) {
  if (!v || v.shape.rank() != 1) return v;
  return View(v.data, v.dtype, {1, v.shape[0]}, {v.shape[0], v.strides[0]}, v.device);
}

}  // namespace ballast::ops
