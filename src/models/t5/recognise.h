#pragma once

#include <optional>

#include "models/t5/config.h"
#include "models/t5/names.h"

namespace ballast::t5 {

// Which model a checkpoint's names and shapes describe; nullopt: none of ours. It is named after
// the preset that it equals, else "t5". What shapes do not say (largest distance, epsilon, token
// ids) is what all released models have; without a head of its own a model is tied and scaled.
std::optional<Config> recognise(const WeightFiles& checkpoint, const TensorMap& names);

// The same for who cannot go on without, corrected by the config.json beside the file, where there
// is one: fails with ErrorCode::input when there is no such model in it, or when the two contradict
// each other.
Config model_config(const WeightFiles& checkpoint, const TensorMap& names);

// The same with the text of a config.json.
Config model_config(const WeightFiles& checkpoint, const TensorMap& names, JsonSource json);

}  // namespace ballast::t5
