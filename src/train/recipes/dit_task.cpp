#include <malloc.h>

#include "core/error.h"
#include "core/log.h"
#include "core/to_size.h"
#include "train/recipes/distilled_task.h"
#include "train/recipes/wan_task.h"
#include "train/run/evaluation.h"
#include "train/run/run_summary.h"
#include "train/trainer.h"
#include "train/training_loop.h"

namespace ballast::train {
namespace {

// A transformer and its adapters, or all of its weights; one expert or both.
class DitTask final : public WanTask {
 public:
  DitTask(PreparedRun run, MemoryPolicy policy, std::size_t auxiliary_variant)
      : WanTask(std::move(run), std::move(policy)), auxiliary_variant_(auxiliary_variant) {
    if (run_.previews) run_.previews->encode();
  }

  void record(ProgramSet& set) override {
    WanTask::record(set);
    expert_steps_.assign(to_size(dit_->experts()), 0);
    if (run_.previews) run_.previews->record(set, auxiliary_variant_);
  }

  void load(Runner& runner) override {
    runner.run_beside(wan::expert_program("load", 0), [&] {
      init_adapters(run_, *dit_, runner);
      write_timestep_rows(*dit_, runner);
    });
    expert_ = 0;
    runner.run("init_state");
  }

  void gradients(Runner& runner, std::int64_t examples, StepRecord& record) override {
    step_expert_ = dit_->experts() == 1 ? 0 : draw_step_expert(record.step);
    use_expert(runner, step_expert_);
    const std::vector<Timestep> times = draw_times(*dit_, step_expert_, record.step, examples);
    record.loss = run_timed_columns(
        runner, times, step_expert_, record,
        [&](const wan::StepPass& pass) { run_pass(runner, pass, times, record); });
    step_.run(runner, wan::expert_program("grad_norm", step_expert_));
    record.grad_norm = *runner.view(dit_->io().grad_norm).as<float>();
  }

  void update(Runner& runner, StepRecord& record) override {
    std::int64_t& updates = expert_steps_[to_size(step_expert_)];
    step_.run(runner, wan::expert_program("update", step_expert_),
              {.step = ++updates, .seed = run_.config.seed, .learning_rate = record.lr});
    add_lane_times(record.times, runner.lane_times());
  }

  bool evaluates() const override { return !run_.evals.empty(); }
  void evaluate(Runner& runner, std::int64_t step, RunRecords& records) override {
    for (const EvalSet& set : run_.evals) {
      const EvalLosses losses =
          evaluate_set(run_, *dit_, runner, set, [&](int expert) { use_expert(runner, expert); });
      records.eval(step, set.name, losses);
      log::info("step {}: {} loss {:.5f}", step, set.name, losses.mean);
    }
  }

  bool draws_previews() const override { return run_.previews != nullptr; }
  std::vector<DrawnPreview> preview(Runner& runner, std::int64_t step, const std::string& folder,
                                    const std::function<bool()>& stop) override {
    std::vector<DrawnPreview> drawn =
        run_.previews->draw({.dit = *dit_,
                             .runner = runner,
                             .use_expert = [&](int expert) { return use_expert(runner, expert); },
                             .stop = stop},
                            step, folder);
    write_timestep_rows(*dit_, runner);  // clips have one timestep for all samples
    return drawn;
  }

  void put_state(TrainerState& state) const override {
    for (std::size_t e = 0; e < expert_steps_.size(); ++e) {
      state.counts[steps_key(e)] = expert_steps_[e];
    }
  }
  void take_state(const TrainerState& state, bool values_only) override {
    for (std::size_t e = 0; e < expert_steps_.size(); ++e) {
      expert_steps_[e] = values_only ? 0 : state.count(steps_key(e));
    }
  }

  std::string file_name() const override {
    return run_.config.method == Method::lora ? "adapter_model.safetensors" : "model.safetensors";
  }
  std::vector<std::string> save(Runner& runner, const SaveTarget& target,
                                std::int64_t step) override {
    if (run_.config.method == Method::full) {
      return save_fine_tune(run_, *dit_, runner, target, step);
    }
    return WanTask::save(runner, target, step);
  }

 private:
  static std::string steps_key(std::size_t expert) {
    return fmt::format("expert_steps.{}", expert);
  }

  bool use_expert(Runner& runner, int expert) {
    if (expert == expert_) return false;
    step_.run(runner, wan::expert_program("load", expert));
    expert_ = expert;
    return true;
  }

  void run_pass(Runner& runner, const wan::StepPass& pass, const std::vector<Timestep>& times,
                StepRecord& record);

  std::size_t auxiliary_variant_;
  std::vector<std::int64_t> expert_steps_;
  int expert_ = -1;      // whose weights are loaded
  int step_expert_ = 0;  // of the step in progress
};

void DitTask::run_pass(Runner& runner, const wan::StepPass& pass,
                       const std::vector<Timestep>& times, StepRecord& record) {
  const wan::DitPassIo& io = dit_->io().runs[pass.run];
  for (std::size_t i = 0; i < io.samples.size(); ++i) {
    const Timestep& t = times[to_size(pass.first) + i];
    runner.view(io.timesteps).as<double>()[i] = t.model_time;
    *runner.view(io.samples[i].noise_fraction).as<float>() = static_cast<float>(t.t);
    *runner.view(io.samples[i].loss_weight).as<float>() =
        static_cast<float>(t.weight / static_cast<double>(times.size()));
  }
  step_.run(runner, io.programs[to_size(step_expert_)],
            {.step = record.step, .seed = run_.config.seed, .first_sample = pass.first});
  add_lane_times(record.times, runner.lane_times());
}

}  // namespace

TrainOutcome train(PreparedRun run, fit::PlannedRun planned, const TrainOptions& options) {
  RunSetup setup = run_setup(run, planned, options.command);
  std::unique_ptr<TrainingTask> task;
  auto& job = planned.job.as<wan::FitJob>();  // in the way that was chosen
  if (run.config.dmd2) {
    task = make_dmd2_task(std::move(run), std::move(planned.policy));
  } else if (run.config.student) {
    task = make_distilled_task(std::move(run), std::move(planned.policy),
                               std::move(*job.teacher->policy));
  } else {
    task = std::make_unique<DitTask>(std::move(run), std::move(planned.policy),
                                     job.auxiliary_model.variant.value_or(0));
  }
  planned = {};  // its recording is the same as the one that follows, without kernels
  malloc_trim(0);
  return train(std::move(setup), std::move(task), options);
}

}  // namespace ballast::train
