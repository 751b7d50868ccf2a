#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "models/wan_vae/fit.h"
#include "models/wan_vae/training.h"
#include "plan/predict.h"

namespace ballast::wan_vae {

struct TrainingRequest {
  TrainingJob job;                    // its checkpointing is chosen
  std::optional<bool> checkpointing;  // nullopt: where the budget asks for it
  std::vector<StoredUnit> encoder, decoder;
  Backend backend;
  MachineProfile profile;
  Budget budget;  // 0: no limit
  std::vector<ProcessLine> other_lines = {};
};

struct PlannedTraining {
  bool checkpointing = false;
  MemoryPlan plan;
  std::vector<PredictedTime> times;  // by program
  std::vector<ProcessLine> lines;
  Bytes device, host;                // arenas and lines
  std::vector<double> clip_seconds;  // predicted, by kind of clip
  double step_seconds = 0;           // besides the clips
};

// The faster of both that fits, or what the leaner one needs.
std::variant<PlannedTraining, Refusal> fit_training(const TrainingRequest& request);

// "all activations kept"
std::string policy_text(const PlannedTraining& p);

}  // namespace ballast::wan_vae
