#pragma once

#include <string>
#include <variant>
#include <vector>

#include "ballast/ballast.h"
#include "report/memory_monitor.h"
#include "train/run/prepared_run.h"

namespace ballast::library {

// All that a Model can be told.
struct Settings {
  v1::TrainingOptions training;
  std::vector<v1::Batch> batches;
  MachineOptions machine;
  fit::Choice checkpointing = fit::Choice::automatic, offloading = fit::Choice::automatic;
};

// The run of a model's files, without settings.
train::PreparedRun open_run(const std::string& path);
v1::ModelInfo info_of(const train::PreparedRun& run);

// Each fails (usage) with what would be right.
void check_training(const v1::TrainingOptions& o, const wan::Config& model);
void check_batches(const std::vector<v1::Batch>& batches);

// The run as the settings want it; its files stay.
void apply(const Settings& settings, train::PreparedRun& run);
// What decides the numbers that training gives, the learning rate apart.
std::string settings_hash(const Settings& settings);

inline DType dtype_of(v1::SaveType t) {
  return t == v1::SaveType::f32 ? DType::f32 : t == v1::SaveType::f16 ? DType::f16 : DType::bf16;
}

inline wan::LatentSize latent_of(const v1::LatentSize& z) { return {z.frames, z.height, z.width}; }

v1::MemoryUse public_memory(const MemoryNumbers& m);
v1::Plan accepted(const train::PreparedRun& run, const fit::PlannedRun& planned);
v1::Plan refused(const train::PreparedRun& run, const Refusal& refusal,
                 const std::vector<fit::Change>& changes);
// What the caller could change in the settings.
std::vector<fit::Change> setting_changes(const Settings& settings, const train::PreparedRun& run,
                                         const Refusal& refusal);

}  // namespace ballast::library
