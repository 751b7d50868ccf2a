#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "nn/update.h"
#include "plan/runner.h"
#include "train/checkpoint/checkpoint.h"

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

// Runs the program of record_value_norm(), which leaves its result in `norm`.
double run_value_norm(Runner& runner, Buffer norm);

struct NonFinite {
  std::string tensor;
  std::int64_t element = 0;
  double value = 0;
};
// The first element of the tensors that is NaN or infinite.
std::optional<NonFinite> find_non_finite(std::span<const SavedTensor> tensors);
// The same tensors; found(where) is called where a piece that is about to be written holds one.
std::vector<SavedTensor> watched(std::vector<SavedTensor> tensors,
                                 const std::function<void(const NonFinite&)>& found);

// The moving average where there is one, else the value itself.
Buffer value_to_save(const UpdatedTensor& t);

}  // namespace ballast::train
