#pragma once

#include <memory>

#include "train/run/prepared_run.h"
#include "train/trainee.h"

namespace ballast::train {

// A run whose configuration has dmd2: adapters of a student and of its critic. The run's loss is
// the critic's; what it saves is the student's LoRA.
std::unique_ptr<Trainee> make_dmd2_trainee(PreparedRun run, MemoryPolicy policy);

}  // namespace ballast::train
