#pragma once

#include <span>
#include <string>
#include <vector>

#include "nn/update.h"
#include "plan/runner.h"
#include "train/training_checkpoint.h"

namespace ballast::train {

// Tensors in the memory of a runner, wherever that is, as checkpoints and files want them. The
// runner must outlive what is returned.

SavedTensor saved_tensor(std::string name, Runner& runner, Buffer b);
LoadedTensor loaded_tensor(std::string name, Runner& runner, Buffer b);
// A buffer as a source of another dtype, piece by piece.
ByteSource converted_source(Runner& runner, Buffer from, DType to);

// Values under their names, optimizer state with its suffix. values_only: an optimizer that starts
// anew.
std::vector<SavedTensor> saved_tensors(std::span<const UpdatedTensor> trained, Runner& runner);
std::vector<LoadedTensor> loaded_tensors(std::span<const UpdatedTensor> trained, Runner& runner,
                                         bool values_only);

// The moving average where there is one, else the value itself.
Buffer value_to_save(const UpdatedTensor& t);

}  // namespace ballast::train
