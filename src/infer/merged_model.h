#pragma once

#include <span>
#include <string>
#include <utility>

#include "core/bytes.h"
#include "io/weight_files.h"
#include "models/wan/config.h"

namespace ballast::infer {

using LoraPath = std::pair<std::string, double>;  // a file and its strength

// LoRAs are merged into a copy of the model once, tensor by tensor, and runs stream from that copy:
// adding them at every visit would cost their product each time.

// Space that the copy of a checkpoint takes.
Bytes merged_model_bytes(const WeightFiles& model);

// Makes the copy in `folder` (or takes the one that an earlier run made of the same files) and says
// where it is.
std::string merged_model(const WeightFiles& model, const wan::Config& config,
                         std::span<const LoraPath> loras, const std::string& folder, int threads);

}  // namespace ballast::infer
