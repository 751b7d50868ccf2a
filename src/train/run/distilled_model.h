#pragma once

#include "train/run/prepared_run.h"

namespace ballast::train {

// What a run with a section [distill] cannot have, and the empty caption that a guided teacher
// needs; its dataset is open. cache_known: what it does not have now will not come.
void check_distillable(const PreparedRun& run, bool cache_known);

// TrainConfig::student: the model that was opened becomes the teacher of run.request, and what is
// trained is a smaller one. Its first weights are written to output_dir, once, unless a file is
// named; a plan does without them.
void take_student(PreparedRun& run, Purpose purpose);

}  // namespace ballast::train
