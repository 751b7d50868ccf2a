#pragma once

#include <string>
#include <vector>

#include "train/checkpoint/trainer_state.h"
#include "train/config/config.h"

namespace ballast::train {

// How a run divides its steps belongs to its checkpoints: the samples of a step and the columns of
// its sums. Runs with one column keep nothing.
void put_parallel(const TrainConfig& config, TrainerState& state);

// Of a run that resumes: what its newest checkpoint says counts where the configuration says
// nothing, whatever the number of ranks. Notes say where rounding changes from then on.
void take_parallel(TrainConfig& config, std::vector<std::string>& notes);

}  // namespace ballast::train
