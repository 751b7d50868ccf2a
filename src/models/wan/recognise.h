#pragma once

#include <optional>
#include <string>
#include <vector>

#include "models/wan/config.h"
#include "models/wan/names.h"

namespace ballast::wan {

struct Recognised {
  Config config;                      // named after the preset it equals, else "wan"
  std::vector<std::string> problems;  // tensors that are missing, in the way, or of another shape
};

// Which transformer a checkpoint's names and shapes describe; nullopt: none of ours. Heads are 128
// wide in every released model; a width that is no multiple of it needs a config. The rows of text
// are those of the config.json in the checkpoint's folder, where it says so, else 512. Derivatives
// with further branches (VACE, control, audio, image cross-attention of Wan2.1 I2V) are refused by
// name. Both experts of Wan2.2 A14B and Wan2.1 14B look the same; the name says "t2v-a14b" for all
// three.
std::optional<Recognised> recognise(const WeightFiles& checkpoint, const TensorMap& names);

// The same for who cannot go on without: fails with ErrorCode::input, naming `path` and the first
// problem.
Config recognised_config(const WeightFiles& checkpoint, const TensorMap& names,
                         const std::string& path);

}  // namespace ballast::wan
