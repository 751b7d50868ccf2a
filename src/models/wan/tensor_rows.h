#pragma once

#include <span>
#include <vector>

#include "io/weight_files.h"
#include "models/wan/names.h"

namespace ballast::wan {

// A tensor of a checkpoint as rows of f32 numbers, [first dimension, the others], scales of 8-bit
// weights multiplied in. Rows are read when they are asked for, and no more of them than that.
class TensorRows {
 public:
  // Fails with ErrorCode::input where the checkpoint has no such tensor. Both must outlive it.
  // columns: of a row; 0: all dimensions but the first.
  TensorRows(const WeightFiles& checkpoint, const TensorMap& names, const std::string& name,
             std::int64_t columns = 0);

  std::int64_t rows() const { return rows_; }
  std::int64_t columns() const { return columns_; }
  void read(std::int64_t row, std::span<float> beginning);

 private:
  Extent extent_;
  DType dtype_ = DType::f32;
  std::int64_t rows_ = 0, columns_ = 0;
  std::vector<float> scales_;  // none, one, or some for each row
  bool by_row_ = false;
  std::vector<std::byte> raw_;
};

}  // namespace ballast::wan
