#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace ballast::train {

// Names inside a run folder; see train/checkpoint/checkpoint.h.
inline constexpr const char* kCheckpointsFolder = "checkpoints";
inline constexpr const char* kLatestFile = "latest";
inline constexpr const char* kStateFile = "state.safetensors";
inline constexpr const char* kTrainerFile = "trainer.json";

// Where the checkpoints of a run are and what they are called.
struct CheckpointNames {
  std::string folder = kCheckpointsFolder;  // below the run's; "": the run's itself
  std::string prefix = "step-";
  int digits = 8;  // at least
};
// <run>/checkpoint-500, as transformers has it.
inline CheckpointNames transformers_names() {
  return {.folder = "", .prefix = "checkpoint-", .digits = 1};
}

std::string checkpoint_name(std::int64_t step, const CheckpointNames& names = {});
std::optional<std::int64_t> step_of_checkpoint(std::string_view name,
                                               const CheckpointNames& names = {});
// Removes those of later steps: a run that goes back, or begins anew, would take them for its own.
// How many there were.
int remove_later_checkpoints(const std::string& run, std::int64_t step,
                             const CheckpointNames& names = {});
// The folder that they are in.
std::string checkpoints_folder(const std::string& run, const CheckpointNames& names = {});

}  // namespace ballast::train
