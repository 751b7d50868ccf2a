#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/prefetcher.h"
#include "models/wan/dit.h"
#include "plan/runner.h"
#include "train/run/prepared_run.h"
#include "train/timesteps.h"
#include "train/training_task.h"

namespace ballast::train {

// The inputs of a recorded sample as a place for a dataset's sample.
data::SampleTarget sample_target(Runner& runner, const wan::DitSampleIo& io);

// Reads the empty caption's states into `to`. Reading a sample reads all of it: its latent goes
// where that of a step will.
void read_empty_caption(const PreparedRun& run, const wan::Dit& dit, Runner& runner,
                        std::span<float> to);

// Times of all samples of a step, whichever rank runs them. side: of the step's expert.
std::vector<Timestep> draw_step_times(const PreparedRun& run, const data::StepBatch& batch,
                                      std::int64_t step, std::int64_t examples,
                                      const std::optional<ExpertSide>& side);

// Brings the samples of one step after the other into the inputs of the recorded programs. While a
// run computes, the next one's samples are read into the second set of inputs.
class BatchFeed {
 public:
  // All of them must outlive it. Reading starts at once.
  BatchFeed(const PreparedRun& run, const wan::Dit& dit, Runner& runner, FeedPosition from);

  // The step at position(): its samples in order, and how this rank runs it. A rank may have none
  // of them.
  const data::StepBatch& step() const { return now_.batch; }
  const std::vector<wan::StepPass>& passes() const { return now_.passes; }
  const FeedPosition& position() const { return now_.at; }
  bool last_of_epoch() const { return now_.last_of_epoch; }
  std::vector<std::string> sample_ids() const;

  // Puts the samples of a part into the inputs; parts in order. Then the next ones are asked for.
  void write_inputs(std::size_t part);
  void next_step();

 private:
  struct Step {
    FeedPosition at;
    data::StepBatch batch;
    std::vector<wan::StepPass> passes;
    bool last_of_epoch = false;
  };

  Step enter(FeedPosition at);
  void request(const Step& step, std::size_t part);
  void look_ahead();  // to the next step: reads its first part

  const PreparedRun& run_;
  const wan::Dit& dit_;
  Runner& runner_;
  std::vector<data::StepBatch> epoch_;  // of the step that is read
  std::int64_t epoch_number_ = 0;
  Step now_, ahead_;  // computed, read
  std::vector<data::SampleRequest> requests_;
  data::Prefetcher prefetcher_;
};

}  // namespace ballast::train
