#include "models/wan/tensor_rows.h"

#include "core/convert.h"
#include "core/error.h"
#include "core/to_size.h"
#include "models/stored_tensor.h"

namespace ballast::wan {

TensorRows::TensorRows(const WeightFiles& checkpoint, const TensorMap& names,
                       const std::string& name, std::int64_t columns) {
  const WanTensor* t = names.find(name);
  if (!t) fail_no_tensor(checkpoint, name);
  const SafetensorsEntry& entry = *t->source.tensor.entry;
  columns_ = columns > 0 ? columns : entry.shape.elements() / entry.shape[0];
  rows_ = entry.shape.elements() / columns_;
  dtype_ = checkpoint.dtype(t->source.tensor);
  extent_ = checkpoint.extent(t->source.tensor);
  if (!t->source.scale) return;
  scales_ = checkpoint.floats(*t->source.scale);
  by_row_ = t->source.layout != ScaleLayout::tensor;
}

void TensorRows::read(std::int64_t row, std::span<float> beginning) {
  const auto count = std::ssize(beginning);
  check(row < rows_ && count <= columns_, "row {} of {}, {} of {} columns", row, rows_, count,
        columns_);
  raw_.resize(to_size(count) * size_of(dtype_));
  extent_.file->read(extent_.offset + static_cast<std::uint64_t>(row * columns_) * size_of(dtype_),
                     raw_);
  convert(raw_.data(), dtype_, beginning.data(), DType::f32, count);
  if (scales_.empty()) return;
  const std::int64_t groups = by_row_ ? std::ssize(scales_) / rows_ : 1;
  for (std::int64_t k = 0; k < count; ++k) {
    const std::int64_t scale = by_row_ ? row * groups + k * groups / columns_ : 0;
    beginning[to_size(k)] *= scales_[to_size(scale)];
  }
}

}  // namespace ballast::wan
