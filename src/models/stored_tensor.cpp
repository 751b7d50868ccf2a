#include "models/stored_tensor.h"

#include "core/error.h"

namespace ballast {

StoredTensor stored_tensor(const WeightFiles& checkpoint, const std::string& name,
                           const WeightTensor& tensor, const std::optional<WeightTensor>& scale,
                           const Shape& shape, std::string_view expected_by) {
  if (tensor.entry->shape != shape) {
    fail(ErrorCode::input, "{}: {} is {}, expected {}{}", checkpoint.path(), name,
         tensor.entry->shape, shape, expected_by);
  }
  const auto bytes = [&](const WeightTensor& t) {
    return StoredBytes{t.entry->shape, checkpoint.dtype(t), checkpoint.extent(t)};
  };
  StoredTensor stored = {.name = name, .data = bytes(tensor), .scale = {}};
  if (!info(stored.data.dtype).floating) {
    fail(ErrorCode::input, "{}: {} is {}; weights are floating-point numbers", checkpoint.path(),
         name, stored.data.dtype);
  }
  if (scale) stored.scale = bytes(*scale);
  return stored;
}

void fail_no_tensor(const WeightFiles& checkpoint, std::string_view name) {
  fail(ErrorCode::input, fmt::format("{} has no tensor {}", checkpoint.path(), name),
       {{"ballast inspect " + checkpoint.path(), "lists the tensors it has"}});
}

}  // namespace ballast
