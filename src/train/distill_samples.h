#pragma once

#include <string>
#include <vector>

#include "models/student/student.h"
#include "plan/runner.h"
#include "train/distill_run.h"
#include "train/text_states.h"

namespace ballast::train {

// Those that were asked for, or the first two of the file.
std::vector<std::string> sample_prompts(const DistillRun& run);

// A sample for each prompt into sample_dir: epoch_0003_rank_0_sample_00.png where a VAE is at hand
// and pictures can be written, else the latent with the ending .safetensors. Returns the paths.
std::vector<std::string> draw_samples(const DistillRun& run, const student::Student& student,
                                      Runner& runner, const TextStates& states, std::int64_t epoch);

}  // namespace ballast::train
