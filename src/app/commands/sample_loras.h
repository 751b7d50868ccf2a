#pragma once

#include <string>

#include "app/commands/sample_options.h"

namespace ballast {

// Which expert a file is of, by the words of its name; -1: any.
int expert_named(const std::string& path);

// Opens the LoRAs. Those to be merged are opened as well: what is wrong with them is said before
// others are merged.
void take_loras(const SampleOptions& o, const wan::Config& model, SampleRun& run);
// The weights of the checkpoints that the run has now.
void take_weights(SampleRun& run);

// With --merge-loras: makes the copies of the model, unless they are there, and takes their
// weights. To be called when all files that the run needs were opened.
void merge_loras(const SampleOptions& o, SampleRun& run);

}  // namespace ballast
