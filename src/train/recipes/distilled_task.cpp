#include "train/recipes/distilled_task.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "core/error.h"
#include "core/random.h"
#include "core/stopwatch.h"
#include "core/to_size.h"
#include "train/checkpoint/runner_tensors.h"
#include "train/run/batch_feed.h"
#include "train/run/column_steps.h"
#include "train/run/run_summary.h"
#include "train/run/trained_model.h"

namespace ballast::train {
namespace {

class DistilledTask final : public TrainingTask {
 public:
  DistilledTask(PreparedRun run, MemoryPolicy policy, MemoryPolicy teacher)
      : run_(std::move(run)), policy_(std::move(policy)) {
    wan::job_of(run_.request).teacher->policy = std::move(teacher);
  }

  void record(ProgramSet& set) override {
    wan::DitJob job = wan::job_of(run_.request).dit;
    job.policy = policy_;
    dit_ = std::make_unique<wan::Dit>(set, std::move(job),
                                      std::move(wan::job_of(run_.request).experts));
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

  void start(Runner& runner, const FeedPosition& from) override {
    feed_.emplace(run_, *dit_, runner, from);
  }

  std::int64_t epoch() const override { return feed_->position().epoch; }
  bool last_of_epoch() const override { return feed_->last_of_epoch(); }
  std::vector<std::string> sample_ids() const override { return feed_->sample_ids(); }

  void gradients(Runner& runner, std::int64_t examples, StepRecord& record) override;
  void update(Runner& runner, StepRecord& record) override {
    step_.run(runner, "update",
              {.step = ++updates_, .seed = run_.config.seed, .learning_rate = record.lr});
    add_lane_times(record.times, runner.lane_times());
  }
  void next_step() override { feed_->next_step(); }
  std::uint32_t agree(Runner& runner, std::uint32_t wish) override {
    return train::agree(*dit_, runner, wish);
  }
  double value_norm(Runner& runner) override {
    return run_value_norm(runner, dit_->io().grad_norm);
  }

  std::vector<SavedTensor> saved_tensors(Runner& runner) const override {
    return train::saved_tensors(dit_->io().trained, runner);
  }
  std::vector<LoadedTensor> loaded_tensors(Runner& runner, bool values_only) const override {
    return train::loaded_tensors(dit_->io().trained, runner, values_only);
  }
  void put_state(TrainerState& state) const override { state.counts[kUpdates] = updates_; }
  void take_state(const TrainerState& state, bool values_only) override {
    const auto found = state.counts.find(kUpdates);
    updates_ = values_only || found == state.counts.end() ? 0 : found->second;
  }

  std::string file_name() const override { return "model.safetensors"; }
  std::vector<std::string> save(Runner& runner, const SaveTarget& target,
                                std::int64_t step) override {
    return save_model(run_, *dit_, runner, target, step);
  }

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

  // Of all samples of a step, on all ranks.
  std::vector<Timestep> draw_times(std::int64_t step, std::int64_t examples) const;
  // Noises sample i of a run; both see it.
  void prepare(Runner& runner, const wan::StepPass& part, std::size_t i, std::int64_t step,
               const Timestep& t);
  void run_pass(Runner& runner, const wan::StepPass& part, const std::vector<Timestep>& times,
                StepRecord& record);
  void take_answers(Runner& runner, const wan::StepPass& part);

  PreparedRun run_;
  MemoryPolicy policy_;
  std::unique_ptr<wan::Dit> dit_, teacher_;
  std::optional<BatchFeed> feed_;
  std::vector<float> empty_;  // the empty caption's states; a line of the plan
  int expert_ = -1;           // of the teacher, whose weights are loaded
  std::int64_t updates_ = 0;
};

std::vector<Timestep> DistilledTask::draw_times(std::int64_t step, std::int64_t examples) const {
  const auto side = teacher_->experts() > 1
                        ? std::optional(ExpertSide{.expert = expert_, .boundary = run_.boundary})
                        : std::nullopt;
  return draw_step_times(run_, feed_->step(), step, examples, side);
}

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
  if (teacher_->experts() > 1) {
    const data::LatentShape& z = run_.dataset->buckets()[feed_->step().bucket].shape;
    use_expert(runner, draw_expert(run_.config.timesteps, run_.boundary, run_.config.seed,
                                   record.step, z.height, z.width));
  }
  const std::vector<Timestep> times = draw_times(record.step, examples);
  for (const Timestep& t : times) record.t.push_back(t.t);
  const ColumnSteps steps = {.dit = *dit_,
                             .programs = step_,
                             .runner = runner,
                             .passes = feed_->passes(),
                             .samples = std::ssize(times),
                             .sets = {0}};
  const auto pass = [&](std::size_t p) {
    const Stopwatch waits;
    feed_->write_inputs(p);
    record.times.data += waits.seconds();
    run_pass(runner, feed_->passes()[p], times, record);
  };
  const auto loss = [&] { return std::vector{*runner.view(dit_->io().loss).as<double>()}; };
  record.loss = steps.run(pass, loss).front();
  step_.run(runner, "grad_norm");
  record.grad_norm = *runner.view(dit_->io().grad_norm).as<float>();
}

}  // namespace

std::unique_ptr<TrainingTask> make_distilled_task(PreparedRun run, MemoryPolicy policy,
                                                  MemoryPolicy teacher) {
  return std::make_unique<DistilledTask>(std::move(run), std::move(policy), std::move(teacher));
}

}  // namespace ballast::train
