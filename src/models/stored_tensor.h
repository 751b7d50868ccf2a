#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "io/weight_files.h"
#include "nn/block_weights.h"

namespace ballast {

// Where a tensor of a model is in its files. Fails with ErrorCode::input where it has another shape
// or is of no floating-point numbers. expected_by: what makes it so, behind the shape that was
// expected.
StoredTensor stored_tensor(const WeightFiles& checkpoint, const std::string& name,
                           const WeightTensor& tensor, const std::optional<WeightTensor>& scale,
                           const Shape& shape, std::string_view expected_by = "");

[[noreturn]] void fail_no_tensor(const WeightFiles& checkpoint, std::string_view name);

}  // namespace ballast
