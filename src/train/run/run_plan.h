#pragma once

#include "report/plan_table.h"
#include "train/run/prepared_run.h"

namespace ballast::train {

// How a run's plan or refusal is said, whoever asks.

PlanTitle title_of(const PreparedRun& run);

// Of its adapters or all its weights, in every expert; nothing for inference.
TrainingSizes training_sizes(const fit::Request& request);

// Refers to `planned`.
// whole: the run, where there is more than one kind of step to speak of.
PlanView view_of(const fit::Request& request, const fit::PlannedRun& planned,
                 const PreparedRun* whole = nullptr);

}  // namespace ballast::train
