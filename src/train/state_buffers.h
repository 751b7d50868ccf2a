#pragma once

#include <string>

#include "plan/runner.h"
#include "train/training_checkpoint.h"

namespace ballast::train {

// A buffer of a run as a tensor of its checkpoints; what the host cannot reach passes in pieces.
SavedTensor saved_buffer(std::string name, Runner& runner, Buffer b);
LoadedTensor loaded_buffer(std::string name, Runner& runner, Buffer b);

}  // namespace ballast::train
