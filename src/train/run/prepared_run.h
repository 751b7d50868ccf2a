#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "data/dataset.h"
#include "fit/advice.h"
#include "io/weight_files.h"
#include "models/wan/fit_job.h"
#include "train/config/config.h"
#include "train/run/dataset_needs.h"
#include "train/run/device_choice.h"
#include "train/run/model_layout.h"
#include "train/run/previews.h"

namespace ballast::train {

enum class Purpose : std::uint8_t {
  plan,   // what is not there yet (cached clips, a choice between experts) is noted
  train,  // and here it is an error
};

struct EvalSet {
  std::string name;
  std::unique_ptr<data::Dataset> dataset;
  std::size_t first_run = 0;  // of its buckets in DitIo::eval_passes
};

// A run with everything that is known before a byte of its weights is read: model, datasets, what
// is recorded, and inside which budget.
struct PreparedRun {
  TrainConfig config;
  std::string title;                     // "wan2.2-i2v-a14b, LoRA rank 16"
  std::string shapes;                    // "6 x 64 x 64 latents, 6144 tokens, batch 1"
  std::vector<WeightFiles> checkpoints;  // by expert
  std::vector<WeightFiles> teacher;      // the same of TrainConfig::student's teacher
  ModelLayout layout;                    // of the files of a full fine-tune
  double boundary = 0;                   // between two experts
  std::unique_ptr<data::Dataset> dataset;
  std::vector<EvalSet> evals;
  std::unique_ptr<Previews> previews;  // null: none are drawn
  fit::Request request = {.job = wan::FitJob()};
  // Which of wan::job_of(request).dit.batches a step of so many samples of a bucket is.
  std::map<std::pair<std::uint32_t, std::size_t>, std::size_t> kinds;
  std::vector<std::int64_t> kind_steps;  // in an epoch, by kind; 0: may come, nothing is cached yet
  std::int64_t steps_per_epoch = 0, total_steps = 0;
  ScheduleOptions schedule;
  std::string config_hash;         // train/run/config_hash.h
  std::vector<std::string> notes;  // for the user, a sentence each

  const wan::Config& model() const { return wan::job_of(request).dit.config; }
};

// What will be encoded before the run begins: the latents that come, by dataset.
struct ComingData {
  std::vector<data::Bucket> training = {};
  std::vector<std::vector<data::Bucket>> evaluation = {};  // by TrainConfig::eval_datasets
  bool masks = false;
};

// coming: of Purpose::plan; without it what is not cached is planned as the largest bucket that the
// dataset allows.
PreparedRun prepare_run(TrainConfig config, const RunTarget& target, Purpose purpose,
                        const ComingData* coming = nullptr);

// What could be written differently in the configuration, for a refusal.
std::vector<fit::Change> possible_changes(const PreparedRun& run, const Refusal& refusal);

}  // namespace ballast::train
