#pragma once

#include <vector>

#include "models/wan/config.h"
#include "models/wan/names.h"
#include "nn/block_weights.h"

namespace ballast::wan {

// The model's parameters as groups in the order of each_parameter(), each tensor where the
// checkpoint has it. Fails with ErrorCode::input when one is missing, has another shape, or a dtype
// that cannot be computed with. The checkpoint must outlive the groups.
std::vector<WeightGroup> weight_groups(const Config& config, const WeightFiles& checkpoint,
                                       const TensorMap& names);

// The same for a checkpoint that has more than the model in it: official names, taken as they are
// behind a prefix ("high_noise_model.").
std::vector<WeightGroup> weight_groups(const Config& config, const WeightFiles& checkpoint,
                                       std::string_view prefix = "");

// The same without a file, for planning: every tensor stored as `stored`.
std::vector<WeightGroup> planned_groups(const Config& config, DType stored);

}  // namespace ballast::wan
