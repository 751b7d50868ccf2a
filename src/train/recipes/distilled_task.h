#pragma once

#include <memory>

#include "train/run/prepared_run.h"
#include "train/training_task.h"

namespace ballast::train {

// A run whose configuration has a student: all weights of a smaller transformer, whose targets are
// the answers of a frozen one.
std::unique_ptr<TrainingTask> make_distilled_task(PreparedRun run, MemoryPolicy policy,
                                                  MemoryPolicy teacher);

}  // namespace ballast::train
