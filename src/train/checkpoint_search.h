#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace ballast::train {

// Names inside a run folder; see train/training_checkpoint.h.
inline constexpr const char* kCheckpointsFolder = "checkpoints";
inline constexpr const char* kLatestFile = "latest";
inline constexpr const char* kStateFile = "state.safetensors";
inline constexpr const char* kTrainerFile = "trainer.json";

std::string checkpoint_name(std::int64_t step);  // "step-00000123"
std::optional<std::int64_t> step_of_checkpoint(std::string_view name);

}  // namespace ballast::train
