#include "train/recipes/distilled_task.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "core/error.h"
#include "core/random.h"
#include "core/to_size.h"
#include "train/recipes/wan_task.h"
#include "train/run/run_summary.h"

namespace ballast::train {
namespace {

class DistilledTask final : public WanTask {
 public:
  DistilledTask(PreparedRun run, MemoryPolicy policy, MemoryPolicy teacher)
      : WanTask(std::move(run), std::move(policy)) {
    wan::job_of(run_.request).teacher->policy = std::move(teacher);
  }

  void record(ProgramSet& set) override {
    WanTask::record(set);
    wan::TeacherJob& t = *wan::job_of(run_.request).teacher;
    wan::DitJob answers = dit_job(t, *dit_);
    teacher_ = std::make_unique<wan::Dit>(set, std::move(answers), std::move(t.experts));
  }

  void load(Runner& runner) override {
    runner.run("load");
    runner.run("init_state");
    write_timestep_rows(*dit_, runner);
    write_timestep_rows(*teacher_, runner);
    use_expert(runner, 0);
    if (!guided()) return;
    const wan::Config& c = dit_->job().config;
    empty_.resize(to_size(c.text_len * c.text_dim));
    read_empty_caption(run_, *dit_, runner, empty_);
  }

  void gradients(Runner& runner, std::int64_t examples, StepRecord& record) override;
  void update(Runner& runner, StepRecord& record) override {
    step_.run(runner, "update",
              {.step = ++updates_, .seed = run_.config.seed, .learning_rate = record.lr});
    add_lane_times(record.times, runner.lane_times());
  }

  void put_state(TrainerState& state) const override { state.counts[kUpdates] = updates_; }
  void take_state(const TrainerState& state, bool values_only) override {
    updates_ = values_only ? 0 : state.count(kUpdates);
  }

  std::string file_name() const override { return "model.safetensors"; }

 private:
  static constexpr const char* kUpdates = "updates";

  bool guided() const { return wan::job_of(run_.request).teacher->guided; }

  std::span<float> floats(Runner& runner, Buffer b) const {
    const TensorView v = runner.view(b);
    return {v.as<float>(), to_size(v.elements())};
  }

  void use_expert(Runner& runner, int expert) {
    if (expert == expert_) return;
    step_.run(runner, wan::kTeacherPrefix + wan::expert_program("load", expert));
    expert_ = expert;
  }

  // Noises sample i of a run; both see it.
  void prepare(Runner& runner, const wan::StepPass& part, std::size_t i, std::int64_t step,
               const Timestep& t);
  void run_pass(Runner& runner, const wan::StepPass& part, const std::vector<Timestep>& times,
                StepRecord& record);
  void take_answers(Runner& runner, const wan::StepPass& part);

  std::unique_ptr<wan::Dit> teacher_;
  std::vector<float> empty_;  // the empty caption's states; a line of the plan
  int expert_ = -1;           // of the teacher, whose weights are loaded
  std::int64_t updates_ = 0;
};

void DistilledTask::prepare(Runner& runner, const wan::StepPass& part, std::size_t i,
                            std::int64_t step, const Timestep& t) {
  const wan::DitPassIo& io = dit_->io().runs[part.run];
  const wan::DitPassIo& answers = teacher_->io().runs[part.run];
  const wan::DitSampleIo& own = io.samples[i];
  const std::int64_t sample = part.first + static_cast<std::int64_t>(i);
  const std::span<float> x = floats(runner, own.latent), noise = floats(runner, own.target);
  fill_normal(random_source(run_.config.seed, "noise", step, fmt::format("sample.{}", sample)), 0,
              noise.data(), std::ssize(noise));
  for (std::size_t e = 0; e < x.size(); ++e) {
    x[e] = static_cast<float>((1 - t.t) * x[e] + t.t * static_cast<double>(noise[e]));
  }
  runner.view(io.timesteps).as<double>()[i] = t.model_time;
  const std::size_t copies = guided() ? 2 : 1;
  for (std::size_t c = 0; c < copies; ++c) {
    const std::size_t slot = c * io.samples.size() + i;
    const wan::DitSampleIo& to = answers.samples[slot];
    std::ranges::copy(x, floats(runner, to.latent).begin());
    if (to.conditioning) {
      std::ranges::copy(floats(runner, own.conditioning), floats(runner, to.conditioning).begin());
    }
    std::ranges::copy(c == 0 ? floats(runner, own.context) : std::span<float>(empty_),
                      floats(runner, to.context).begin());
    runner.view(answers.timesteps).as<double>()[slot] = t.model_time;
  }
}

// target = v, or uncond + w (cond - uncond).
void DistilledTask::take_answers(Runner& runner, const wan::StepPass& part) {
  const auto& samples = dit_->io().runs[part.run].samples;
  const auto& answers = teacher_->io().runs[part.run].samples;
  const double w = run_.config.student->guidance;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const std::span<float> target = floats(runner, samples[i].target);
    std::ranges::copy(floats(runner, answers[i].output), target.begin());
    if (!guided()) continue;
    const std::span<float> u = floats(runner, answers[samples.size() + i].output);
    for (std::size_t e = 0; e < target.size(); ++e) {
      target[e] = static_cast<float>(u[e] + w * (static_cast<double>(target[e]) - u[e]));
    }
  }
}

void DistilledTask::run_pass(Runner& runner, const wan::StepPass& part,
                             const std::vector<Timestep>& times, StepRecord& record) {
  const wan::DitPassIo& io = dit_->io().runs[part.run];
  for (std::size_t i = 0; i < io.samples.size(); ++i) {
    const Timestep& t = times[to_size(part.first) + i];
    prepare(runner, part, i, record.step, t);
    *runner.view(io.samples[i].loss_weight).as<float>() =
        static_cast<float>(t.weight / static_cast<double>(times.size()));
  }
  const StepValues values = {
      .step = record.step, .seed = run_.config.seed, .first_sample = part.first};
  step_.run(runner, teacher_->io().runs[part.run].programs[to_size(expert_)], values);
  add_lane_times(record.times, runner.lane_times());
  take_answers(runner, part);
  step_.run(runner, io.programs[0], values);
  add_lane_times(record.times, runner.lane_times());
}

void DistilledTask::gradients(Runner& runner, std::int64_t examples, StepRecord& record) {
  if (teacher_->experts() > 1) use_expert(runner, draw_step_expert(record.step));
  const std::vector<Timestep> times = draw_times(*teacher_, expert_, record.step, examples);
  record.loss = run_timed_columns(runner, times, 0, record, [&](const wan::StepPass& pass) {
    run_pass(runner, pass, times, record);
  });
  step_.run(runner, "grad_norm");
  record.grad_norm = *runner.view(dit_->io().grad_norm).as<float>();
}

}  // namespace

std::unique_ptr<TrainingTask> make_distilled_task(PreparedRun run, MemoryPolicy policy,
                                                  MemoryPolicy teacher) {
  return std::make_unique<DistilledTask>(std::move(run), std::move(policy), std::move(teacher));
}

}  // namespace ballast::train
