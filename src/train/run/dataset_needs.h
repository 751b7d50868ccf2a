#pragma once

#include <string>

#include "data/dataset.h"
#include "models/wan/config.h"
#include "train/config/config.h"

namespace ballast::train {

// What a model takes of a dataset, and what its caches are called.
data::ModelNeeds needs_of(const ModelConfig& named, const wan::Config& model);
std::string cache_name_of(const ModelConfig& named, const wan::Config& model);

}  // namespace ballast::train
