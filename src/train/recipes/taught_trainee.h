#pragma once

#include <memory>

#include "train/run/prepared_run.h"
#include "train/trainee.h"

namespace ballast::train {

// A run whose configuration has a student: all weights of a smaller transformer, whose targets are
// the answers of a frozen one.
std::unique_ptr<Trainee> make_taught_trainee(PreparedRun run, MemoryPolicy policy,
                                             MemoryPolicy teacher);

}  // namespace ballast::train
