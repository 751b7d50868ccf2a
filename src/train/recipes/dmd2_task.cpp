#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "core/error.h"
#include "core/stopwatch.h"
#include "core/to_size.h"
#include "train/checkpoint/runner_tensors.h"
#include "train/recipes/distilled_task.h"
#include "train/recipes/dmd2_step.h"
#include "train/run/batch_feed.h"
#include "train/run/column_steps.h"
#include "train/run/run_summary.h"
#include "train/run/trained_model.h"

namespace ballast::train {
namespace {

class Dmd2Task final : public TrainingTask {
 public:
  Dmd2Task(PreparedRun run, MemoryPolicy policy)
      : run_(std::move(run)), options_(*run_.config.dmd2), policy_(std::move(policy)) {}

  void record(ProgramSet& set) override {
    wan::DitJob job = wan::job_of(run_.request).dit;
    job.policy = policy_;
    dit_ = std::make_unique<wan::Dit>(set, std::move(job),
                                      std::move(wan::job_of(run_.request).experts));
  }

  void load(Runner& runner) override {
    runner.run("load");
    init_adapters(run_, *dit_, runner);
    runner.run("init_state");
    write_timestep_rows(*dit_, runner);
    if (const Buffer to = dit_->io().empty_context) {
      const TensorView text = runner.view(to);
      read_empty_caption(run_, *dit_, runner, {text.as<float>(), to_size(text.elements())});
    }
  }

  void start(Runner& runner, const FeedPosition& from) override {
    feed_.emplace(run_, *dit_, runner, from);
  }

  std::int64_t epoch() const override { return feed_->position().epoch; }
  bool last_of_epoch() const override { return feed_->last_of_epoch(); }
  std::vector<std::string> sample_ids() const override { return feed_->sample_ids(); }

  void gradients(Runner& runner, std::int64_t, StepRecord& record) override;
  void update(Runner& runner, StepRecord& record) override;
  void next_step() override { feed_->next_step(); }
  std::uint32_t agree(Runner& runner, std::uint32_t wish) override {
    return train::agree(*dit_, runner, wish);
  }
  double value_norm(Runner& runner) override {
    return run_value_norm(runner, dit_->io().grad_norm);
  }

  std::vector<Scalar> scalars() const override {
    return {{"train/student_loss", static_cast<float>(student_loss_)},
            {"train/student_grad_norm", static_cast<float>(student_norm_)}};
  }

  std::vector<SavedTensor> saved_tensors(Runner& runner) const override {
    return train::saved_tensors(dit_->io().trained, runner);
  }
  std::vector<LoadedTensor> loaded_tensors(Runner& runner, bool values_only) const override {
    return train::loaded_tensors(dit_->io().trained, runner, values_only);
  }
  void put_state(TrainerState& state) const override {
    state.counts[kStudentUpdates] = updates_[0];
    state.counts[kCriticUpdates] = updates_[1];
    state.numbers[kStudentLoss] = student_loss_;
  }
  void take_state(const TrainerState& state, bool values_only) override {
    const auto count = [&](const char* key) {
      const auto found = state.counts.find(key);
      return values_only || found == state.counts.end() ? 0 : found->second;
    };
    updates_[0] = count(kStudentUpdates);
    updates_[1] = count(kCriticUpdates);
    const auto loss = state.numbers.find(kStudentLoss);
    if (loss != state.numbers.end()) student_loss_ = loss->second;
  }

  std::string file_name() const override { return "adapter_model.safetensors"; }
  std::vector<std::string> save(Runner& runner, const SaveTarget& target,
                                std::int64_t step) override {
    return save_model(run_, *dit_, runner, target, step);
  }

 private:
  static constexpr const char* kStudentUpdates = "student_updates";
  static constexpr const char* kCriticUpdates = "critic_updates";
  static constexpr const char* kStudentLoss = "student_loss";

  double norm_of(Runner& runner, int set) {
    step_.run(runner, wan::set_program(dit_->job(), "grad_norm", set));
    runner.read(dit_->io().clip_factor, std::as_writable_bytes(std::span(&clip_factors_[set], 1)));
    return *runner.view(dit_->io().grad_norm).as<float>();
  }

  PreparedRun run_;
  Dmd2Options options_;
  MemoryPolicy policy_;
  std::unique_ptr<wan::Dit> dit_;
  std::optional<BatchFeed> feed_;
  std::int64_t updates_[2] = {};                // of student and critic
  float clip_factors_[2] = {};                  // of their gradients
  double student_loss_ = 0, student_norm_ = 0;  // of its last step
};

void Dmd2Task::gradients(Runner& runner, std::int64_t, StepRecord& record) {
  Dmd2Step step(options_, *dit_, runner, [&](const std::string& program, const StepValues& values) {
    step_.run(runner, program, values);
    add_lane_times(record.times, runner.lane_times());
  });
  const bool student = options_.student_due(record.step);
  const auto samples = std::ssize(feed_->step().samples);
  for (const float score :
       step.critic_scores({.seed = run_.config.seed, .step = record.step, .samples = samples})) {
    record.t.push_back(score);
  }
  double critic_loss = 0, student_loss = 0;  // of the column in progress
  const auto pass = [&](std::size_t p) {
    const Stopwatch waits;
    feed_->write_inputs(p);
    record.times.data += waits.seconds();
    const Dmd2Position at = {.seed = run_.config.seed,
                             .step = record.step,
                             .run = feed_->passes()[p].run,
                             .first = feed_->passes()[p].first,
                             .samples = samples};
    step.begin_part(at);
    step.critic(at);
    critic_loss = *runner.view(dit_->io().loss).as<double>();  // of this part and those before
    if (options_.regresses(record.step)) {
      student_loss += step.regress(at);
    } else if (student) {
      student_loss += step.student(at);
    }
  };
  const auto column_losses = [&] {
    return std::vector{critic_loss, std::exchange(student_loss, 0)};
  };
  const ColumnSteps steps = {.dit = *dit_,
                             .programs = step_,
                             .runner = runner,
                             .passes = feed_->passes(),
                             .samples = samples,
                             .sets = student ? std::vector{1, 0} : std::vector{1}};
  const std::vector<double> losses = steps.run(pass, column_losses);
  record.loss = losses[0];
  // Both norms are known before anything is changed.
  if (student) {
    student_loss_ = losses[1];
    student_norm_ = norm_of(runner, 0);
  }
  record.grad_norm = norm_of(runner, 1);
  if (student && !std::isfinite(student_norm_)) record.grad_norm = student_norm_;
}

void Dmd2Task::update(Runner& runner, StepRecord& record) {
  for (const int set : {0, 1}) {
    if (set == 0 && !options_.student_due(record.step)) continue;
    // They share the place of the clipping factor.
    runner.write(dit_->io().clip_factor, std::as_bytes(std::span(&clip_factors_[set], 1)));
    const double rate = set == 0 ? record.lr : record.lr * options_.critic_rate;
    step_.run(runner, wan::set_program(dit_->job(), "update", set),
              {.step = ++updates_[set], .seed = run_.config.seed, .learning_rate = rate});
    add_lane_times(record.times, runner.lane_times());
  }
}

}  // namespace

std::unique_ptr<TrainingTask> make_dmd2_task(PreparedRun run, MemoryPolicy policy) {
  return std::make_unique<Dmd2Task>(std::move(run), std::move(policy));
}

}  // namespace ballast::train
