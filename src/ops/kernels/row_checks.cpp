#include "ops/kernels/row_checks.h"

#include "core/error.h"

namespace ballast::ops {
namespace {

bool inner_stride_is_one(const ConstTensorView& v) {
  return v.shape.rank() == 0 || v.shape.back() <= 1 || v.strides.back() == 1;
}

bool is_parameter(DType t) { return t == DType::f32 || t == DType::bf16 || t == DType::f16; }

template <class View>
View merge_leading(std::string_view what, const View& v) {
  const int rank = v.shape.rank();
  check(rank >= 1, "{} is a scalar", what);
  const std::int64_t width = v.shape.back(), rows = v.shape.rows();
  std::int64_t stride = 0, next = 0;  // of the merged rows; of the dimension to the left
  for (int i = rank - 2; i >= 0; --i) {
    if (v.shape[i] == 1 || rows == 0) continue;
    if (stride == 0) {
      stride = v.strides[i];
    } else {
      check(v.strides[i] == next, "{} {} has rows that are not evenly spaced", what, v.shape);
    }
    next = v.strides[i] * v.shape[i];
  }
  return View(v.data, v.dtype, {rows, width}, {stride, v.strides.back()}, v.device);
}

}  // namespace

void check_rank_2(std::string_view what, const ConstTensorView& v) {
  check(v.shape.rank() == 2, "{} is {}, expected two dimensions", what, v.shape);
}

void check_rows(std::string_view what, const ConstTensorView& v, std::int64_t rows,
                std::int64_t width) {
  check(v.shape.rank() == 2 && v.shape[0] == rows && v.shape[1] == width,
        "{} is {}, expected [{}, {}]", what, v.shape, rows, width);
  check(v.dtype == DType::f32 || v.dtype == DType::bf16, "{} is {}, expected f32 or bf16", what,
        v.dtype);
  check(inner_stride_is_one(v), "{} has inner stride {}", what, v.strides.back());
}

void check_parameter(std::string_view what, const ConstTensorView& v, std::int64_t width) {
  check(v.shape.rank() == 1 && v.shape[0] == width, "{} is {}, expected [{}]", what, v.shape,
        width);
  check(is_parameter(v.dtype), "{} is {}, expected f32, bf16 or f16", what, v.dtype);
  check(inner_stride_is_one(v), "{} has stride {}", what, v.strides.back());
}

void check_table(std::string_view what, const ConstTensorView& v, std::int64_t width) {
  if (!v) return;
  check(v.shape.rank() == 2 && v.shape[0] >= 1 && v.shape[1] == width,
        "{} is {}, expected at least one row of {}", what, v.shape, width);
  check(is_parameter(v.dtype), "{} is {}, expected f32, bf16 or f16", what, v.dtype);
  check(inner_stride_is_one(v), "{} has inner stride {}", what, v.strides.back());
}

void check_f32(std::string_view what, const ConstTensorView& v, const Shape& shape) {
  check(v.shape == shape, "{} is {}, expected {}", what, v.shape, shape);
  check(v.dtype == DType::f32, "{} is {}, expected f32", what, v.dtype);
  check(inner_stride_is_one(v), "{} has inner stride {}", what, v.strides.back());
}

void check_index(std::string_view what, const ConstTensorView& v, std::int64_t rows) {
  if (!v) return;
  check(v.shape.rank() == 1 && v.shape[0] == rows, "{} is {}, expected [{}]", what, v.shape, rows);
  check(v.dtype == DType::i32, "{} is {}, expected i32", what, v.dtype);
  check(inner_stride_is_one(v), "{} has stride {}", what, v.strides.back());
}

void check_index_range(std::string_view what, const ConstTensorView& v, std::int64_t tables) {
  if (!v) return;
  const auto* index = v.as<std::int32_t>();
  for (std::int64_t r = 0; r < v.shape[0]; ++r) {
    check(index[r] >= 0 && index[r] < tables, "{} of row {} is {}, there are {} table rows", what,
          r, index[r], tables);
  }
}

TensorView as_rows(std::string_view what, const TensorView& v) { return merge_leading(what, v); }
ConstTensorView as_rows(std::string_view what, const ConstTensorView& v) {
  return merge_leading(what, v);
}

}  // namespace ballast::ops
