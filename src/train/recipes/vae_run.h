#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "fit/advice.h"
#include "io/weight_files.h"
#include "models/wan_vae/training_fit_job.h"
#include "report/plan_table.h"
#include "train/run/prepared_data.h"
#include "train/run/prepared_run.h"
#include "train/trainer.h"

namespace ballast::train {

// A training of a VAE (TrainConfig::vae) with everything that is known before a byte of its weights
// is read.
struct PreparedVae {
  TrainConfig config;
  std::string title;                     // "wan2.1-vae, full fine-tune"
  std::string shapes;                    // "4 clips of 17 x 64 x 64"
  std::vector<WeightFiles> checkpoints;  // one; none where a plan is made of a VAE from nothing
  std::unique_ptr<data::Dataset> dataset;
  fit::Request request;
  std::vector<std::size_t> kinds;  // of training().clips, by bucket of the dataset
  std::int64_t steps_per_epoch = 0, total_steps = 0;
  ScheduleOptions schedule;
  std::string config_hash;  // train/run/config_hash.h
  std::vector<std::string> notes;

  wan_vae::TrainingJob& training() { return request.job.as<wan_vae::TrainingFitJob>().training; }
  const wan_vae::TrainingJob& training() const {
    return request.job.as<wan_vae::TrainingFitJob>().training;
  }
  const wan_vae::Config& network() const { return training().config; }
};

// What a VAE takes of a dataset: clips, no captions. side: pixels_per_latent().
data::ModelNeeds vae_needs(std::int64_t side);
inline constexpr const char* kVaeCache = "wan_vae";

// The network that a configuration names, from the header of its file.
wan_vae::Config vae_network(const VaeConfig& c);

// To train a VAE from nothing its first weights are written to output_dir, once: every run with
// these sizes and this seed begins with that file.
PreparedVae prepare_vae(TrainConfig config, const RunTarget& target, Purpose purpose);

// What could be typed or written differently, for a refusal.
std::vector<fit::Change> possible_changes(const PreparedVae& run, const Refusal& refusal);

// The kinds of clips there would be with other numbers in the dataset's file.
std::vector<wan_vae::LatentClip> clips_with(const PreparedVae& run, const DataChange& change);

PlanTitle title_of(const PreparedVae& run);
PlanView view_of(const PreparedVae& run, const fit::PlannedRun& planned);  // refers to both

TrainOutcome train(PreparedVae run, fit::PlannedRun planned, const TrainOptions& options);

}  // namespace ballast::train
