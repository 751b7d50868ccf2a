#pragma once

#include <string>
#include <vector>

#include "models/student/student.h"
#include "plan/runner.h"
#include "train/recipes/distill_run.h"
#include "train/run/text_states.h"

namespace ballast::train {

// Those that were asked for, or the first two of the file.
std::vector<std::string> sample_prompts(const DistillRun& run);

// Whether samples become images: they were asked for, a VAE is at hand and images can be
// written.
bool decodes_samples(const DistillRun& run);
// What that takes beside teacher and student: the processors decode, a sample at a time. Fails with
// ErrorCode::input where the VAE is not the teacher's.
ProcessLine decoder_line(const DistillRun& run);

// Makes sample_dir. Fails with ErrorCode::io where no sample could be written there.
void check_can_draw(const DistillRun& run);

// A sample for each prompt into sample_dir: epoch_0003_rank_0_sample_00.png where samples
// are decoded, else the latent with the ending .safetensors. Returns the paths.
std::vector<std::string> draw_samples(const DistillRun& run, const student::Student& student,
                                      Runner& runner, const TextStates& states, std::int64_t epoch);

}  // namespace ballast::train
