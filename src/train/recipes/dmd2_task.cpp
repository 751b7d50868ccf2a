#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "core/error.h"
#include "core/to_size.h"
#include "train/recipes/distilled_task.h"
#include "train/recipes/dmd2_step.h"
#include "train/recipes/wan_task.h"
#include "train/run/run_summary.h"

namespace ballast::train {
namespace {

class Dmd2Task final : public WanTask {
 public:
  Dmd2Task(PreparedRun run, MemoryPolicy policy)
      : WanTask(std::move(run), std::move(policy)), options_(*run_.config.dmd2) {}

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

  void gradients(Runner& runner, std::int64_t, StepRecord& record) override;
  void update(Runner& runner, StepRecord& record) override;

  std::vector<Scalar> scalars() const override {
    return {{"train/student_loss", static_cast<float>(student_loss_)},
            {"train/student_grad_norm", static_cast<float>(student_norm_)}};
  }

  void put_state(TrainerState& state) const override {
    state.counts[kStudentUpdates] = updates_[0];
    state.counts[kCriticUpdates] = updates_[1];
    state.numbers[kStudentLoss] = student_loss_;
  }
  void take_state(const TrainerState& state, bool values_only) override {
    updates_[0] = values_only ? 0 : state.count(kStudentUpdates);
    updates_[1] = values_only ? 0 : state.count(kCriticUpdates);
    student_loss_ = state.number(kStudentLoss, student_loss_);
  }

  std::string file_name() const override { return "adapter_model.safetensors"; }

 private:
  static constexpr const char* kStudentUpdates = "student_updates";
  static constexpr const char* kCriticUpdates = "critic_updates";
  static constexpr const char* kStudentLoss = "student_loss";

  double norm_of(Runner& runner, int set) {
    step_.run(runner, wan::set_program(dit_->job(), "grad_norm", set));
    runner.read(dit_->io().clip_factor, std::as_writable_bytes(std::span(&clip_factors_[set], 1)));
    return *runner.view(dit_->io().grad_norm).as<float>();
  }

  Dmd2Options options_;
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
  const auto run_pass = [&](const wan::StepPass& pass) {
    const Dmd2Position at = {.seed = run_.config.seed,
                             .step = record.step,
                             .run = pass.run,
                             .first = pass.first,
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
  const std::vector<double> losses =
      run_columns(runner, samples, student ? std::vector{1, 0} : std::vector{1}, record, run_pass,
                  column_losses);
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
