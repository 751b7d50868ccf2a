#pragma once

#include "train/run/prepared_run.h"

namespace ballast::train {

// Opens the transformer of a run, or both experts, and notes why these. A plan does without the
// files of a model that is known by its id or preset.
wan::Config choose_model(PreparedRun& run, Purpose purpose);

}  // namespace ballast::train
