#pragma once

#include <string>
#include <vector>

#include "models/wan/dit.h"
#include "plan/runner.h"
#include "train/run/prepared_run.h"
#include "train/training_task.h"

namespace ballast::train {

// What a run trains, in the memory of its runner.

// First values: A uniform in +-1/sqrt(in), B zero, from the run's seed and each module's name; or
// the factors of adapter.init_from. Weights of a full fine-tune are there already.
void init_adapters(const PreparedRun& run, const wan::Dit& dit, Runner& runner);

// Every sample's tokens have a timestep of their own: that of its place in the run.
void write_timestep_rows(const wan::Dit& dit, Runner& runner);

// Writes the LoRA (one file per expert) or the model, in the configured dialect and dtype. With an
// average of the weights (EMA) that is what is saved. Returns the paths.
std::vector<std::string> save_model(const PreparedRun& run, const wan::Dit& dit, Runner& runner,
                                    const SaveTarget& target, std::int64_t step);

// The model of a full fine-tune with what those who load it expect beside it: the layout and the
// names of the model that it began with (train/run/model_layout.h).
std::vector<std::string> save_fine_tune(const PreparedRun& run, const wan::Dit& dit, Runner& runner,
                                        const SaveTarget& target, std::int64_t step);

}  // namespace ballast::train
