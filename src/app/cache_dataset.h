#pragma once

#include "app/planning.h"
#include "train/config.h"

namespace ballast {

// Encodes what the datasets of a run lack: prints the plans of both phases, refuses (ErrorCode::
// refused) where one does not fit, runs them one after the other, prints what was done and what was
// left out. Of this program's flags --threads and --json are used.
void cache_dataset(const train::TrainConfig& config, const OwnFlags& own);

}  // namespace ballast
