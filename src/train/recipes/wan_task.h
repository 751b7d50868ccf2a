#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/stopwatch.h"
#include "train/run/batch_feed.h"
#include "train/run/column_steps.h"
#include "train/run/trained_model.h"
#include "train/training_task.h"

namespace ballast::train {

// What trainings of Wan's transformer share: its programs, the samples of its steps, what of it is
// saved.
class WanTask : public TrainingTask {
 public:
  WanTask(PreparedRun run, MemoryPolicy policy)
      : run_(std::move(run)), policy_(std::move(policy)) {}

  void record(ProgramSet& set) override {
    wan::DitJob job = wan::job_of(run_.request).dit;
    job.policy = policy_;
    dit_ = std::make_unique<wan::Dit>(set, std::move(job),
                                      std::move(wan::job_of(run_.request).experts));
  }
  void start(Runner& runner, const FeedPosition& from) override {
    feed_.emplace(run_, *dit_, runner, from);
  }

  std::int64_t epoch() const override { return feed_->position().epoch; }
  bool last_of_epoch() const override { return feed_->last_of_epoch(); }
  std::vector<std::string> sample_ids() const override { return feed_->sample_ids(); }
  void next_step() override { feed_->next_step(); }
  std::uint32_t agree(Runner& runner, std::uint32_t wish) override {
    return train::agree(*dit_, runner, wish);
  }
  std::vector<UpdatedTensor> trained() const override { return dit_->io().trained; }
  Buffer grad_norm() const override { return dit_->io().grad_norm; }

  std::vector<std::string> save(Runner& runner, const SaveTarget& target,
                                std::int64_t step) override {
    return save_model(run_, *dit_, runner, target, step);
  }

 protected:
  using RunPass = std::function<void(const wan::StepPass& pass)>;

  // ColumnSteps::run() with the inputs of each pass in their places.
  std::vector<double> run_columns(Runner& runner, std::int64_t samples, std::vector<int> sets,
                                  StepRecord& record, const RunPass& run_pass,
                                  const std::function<std::vector<double>()>& column_losses) {
    const ColumnSteps steps = {.dit = *dit_,
                               .programs = step_,
                               .runner = runner,
                               .passes = feed_->passes(),
                               .samples = samples,
                               .sets = std::move(sets)};
    const auto with_inputs = [&](std::size_t p) {
      const Stopwatch waits;
      feed_->write_inputs(p);
      record.times.data += waits.seconds();
      run_pass(feed_->passes()[p]);
    };
    return steps.run(with_inputs, column_losses);
  }

  // Of samples with a time each: returns their loss.
  double run_timed_columns(Runner& runner, const std::vector<Timestep>& times, int set,
                           StepRecord& record, const RunPass& run_pass) {
    for (const Timestep& t : times) record.t.push_back(t.t);
    const auto loss = [&] { return std::vector{*runner.view(dit_->io().loss).as<double>()}; };
    return run_columns(runner, std::ssize(times), {set}, record, run_pass, loss).front();
  }

  // experts: the model that has them; expert: the one that the step is of.
  std::vector<Timestep> draw_times(const wan::Dit& experts, int expert, std::int64_t step,
                                   std::int64_t examples) const {
    const auto side = experts.experts() > 1
                          ? std::optional(ExpertSide{.expert = expert, .boundary = run_.boundary})
                          : std::nullopt;
    return draw_step_times(run_, feed_->step(), step, examples, side);
  }
  int draw_step_expert(std::int64_t step) const {
    const data::LatentShape& z = run_.dataset->buckets()[feed_->step().bucket].shape;
    return draw_expert(run_.config.timesteps, run_.boundary, run_.config.seed, step, z.height,
                       z.width);
  }

  PreparedRun run_;
  MemoryPolicy policy_;
  std::unique_ptr<wan::Dit> dit_;
  std::optional<BatchFeed> feed_;
};

}  // namespace ballast::train
