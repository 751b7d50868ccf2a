#pragma once

#include <string>

#include "train/recipes/distill_run.h"
#include "train/trainer.h"

namespace ballast::train {

// Runs a planned distillation, from the beginning or from the newest whole checkpoint, to its end
// or to a signal: prompts are encoded first, in a phase of their own; then teacher and student run.
// The student is saved in output_dir; log, report and checkpoints are in a run folder below it.
TrainOutcome distill(DistillRun run, fit::PlannedRun planned, const TrainOptions& options);

}  // namespace ballast::train
