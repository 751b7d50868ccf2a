#pragma once

#include <optional>
#include <span>
#include <string>

#include "train/checkpoint/checkpoint.h"

namespace ballast::train {

// What a checkpoint must be of to go on from it.
struct ResumedRun {
  std::string folder;
  std::string model;       // its path, for the message
  std::string model_hash;  // of the model that is there now
  std::uint64_t seed = 0;
  std::string optimizer;            // empty: it starts anew
  std::string optimizer_flag = {};  // RunSetup's
  std::span<const LoadedTensor> tensors;
  Unasked unasked = Unasked::refuse;
  CheckpointNames names = {};
  // Only checkpoints before this step: later ones could not be read.
  std::optional<std::int64_t> before = {};
};

// The newest whole checkpoint of the run; nullopt when it has none yet. One of another model, seed,
// adapter or optimizer is an Error (ErrorCode::input). Nothing is changed on disk or in memory, so
// a resume that was a mistake costs nothing. The bytes of tensors are verified when they are
// loaded.
inline constexpr const char* kOptimizerText = "optimizer";  // in TrainerState::texts
std::optional<FoundCheckpoint> find_resumed(const ResumedRun& run);
// The same for a checkpoint that is found already.
void check_resumed(const FoundCheckpoint& found, const ResumedRun& run);

}  // namespace ballast::train
