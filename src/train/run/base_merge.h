#pragma once

#include "train/run/prepared_run.h"

namespace ballast::train {

// Base LoRAs are merged into a copy of the model once, tensor by tensor, and training streams from
// that copy: adding them at every visit would cost their product each time.

// Space that the copy of one checkpoint takes.
Bytes base_merge_bytes(const WeightFiles& model);

// Makes the copies in output_dir (or takes those that an earlier run made of the same files) and
// lets the run read from them. Does nothing without base LoRAs.
void merge_base_loras(PreparedRun& run);

}  // namespace ballast::train
