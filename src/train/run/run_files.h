#pragma once

#include <cstdint>

#include "report/plan_table.h"
#include "train/checkpoint/checkpoint_search.h"
#include "train/config/config.h"

namespace ballast::train {

// How a run saves what it trains.
struct SavedRun {
  const TrainConfig& config;  // output_dir, resume, cadences, optimizer, previews
  std::int64_t total_steps = 0, steps_per_epoch = 0;  // 0: not known yet
  std::int64_t parameters = 0;                        // that train
  DType trained = DType::f32;                         // of their values in checkpoints
  DType saved = DType::f32;                           // of the models that are saved
  int trained_sets = 1;        // as often they are in a checkpoint: a critic beside the student
  bool in_output_dir = false;  // checkpoints are there, and one model at the end
  bool keeps_best = false;     // one checkpoint more than keep_checkpoints
  std::int64_t preview_pixels = 0;  // of all frames of one clip
};

// Space on disk that the run takes at most, besides what is there already when it resumes: each
// checkpoint that is kept and the one that is being written, saved models, previews, logs. Previews
// and logs are estimates. here: the output folder is on this machine, so its free space is asked
// for.
PlanFiles files_of(const SavedRun& run, bool here);

// Values and optimizer state of so many trained elements.
Bytes checkpoint_size(std::int64_t elements, DType values, const OptimizerOptions& optimizer);

// How often something is due in steps (done, total].
std::int64_t times_due(const Cadence& cadence, std::int64_t done, std::int64_t total,
                       std::int64_t steps_per_epoch, std::int64_t global_batch);

}  // namespace ballast::train
