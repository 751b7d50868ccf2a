#pragma once

#include <memory>

#include "train/run/prepared_run.h"
#include "train/training_task.h"

namespace ballast::train {

// A run whose configuration has a student: all weights of a smaller transformer, whose targets are
// the answers of a frozen one.
std::unique_ptr<TrainingTask> make_distilled_task(PreparedRun run, MemoryPolicy policy,
                                                  MemoryPolicy teacher);

// A run whose configuration has dmd2: adapters of a student and of its critic. The run's loss is
// the critic's; what it saves is the student's LoRA.
std::unique_ptr<TrainingTask> make_dmd2_task(PreparedRun run, MemoryPolicy policy);

}  // namespace ballast::train
