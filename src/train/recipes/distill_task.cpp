#include <malloc.h>

#include <algorithm>

#include "core/error.h"
#include "core/random.h"
#include "core/to_size.h"
#include "infer/student_sampler.h"
#include "models/student/initial_weights.h"
#include "models/student/student_files.h"
#include "train/recipes/distill_batches.h"
#include "train/recipes/distill_run.h"
#include "train/recipes/distill_samples.h"
#include "train/run/run_summary.h"
#include "train/run/text_states.h"
#include "train/training_loop.h"

namespace ballast::train {
namespace {

RunInfo info_of(const DistillRun& run, const fit::PlannedRun& planned, const std::string& command) {
  const DistillConfig& c = run.config;
  RunInfo info = common_info(run.request, planned, run.total_steps, run.notes);
  info.title = fmt::format("distillation of {}", run.pair().teacher.name);
  info.command = command;
  info.summary = {{"teacher", run.files.transformer},
                  {"student", fmt::format("{} parameters", parameter_count(run.student))},
                  {"prompts", fmt::format("{} in {}", run.prompts->count(), c.data_path)},
                  {"steps", fmt::format("{}, {} per epoch", run.total_steps, run.steps_per_epoch)},
                  {"samples per step", std::to_string(run.samples_per_step())},
                  {"optimizer", std::string(name_of(c.optimizer.kind))},
                  {"learning rate", fmt::format("{:g}, {}", c.lr, name_of(c.schedule.kind))},
                  {"seed", std::to_string(c.seed)},
                  {"policy", text_of(planned.job.as<student::FitJob>().under(planned.policy))}};
  return info;
}

// An image student of a transformer. What is shown in a step depends on its number alone.
class DistillTask final : public TrainingTask {
 public:
  DistillTask(DistillRun run, student::PairJob job)
      : run_(std::move(run)),
        job_(std::move(job)),
        states_(run_.config.text_states, run_.files.text_encoder, run_.student.text_dim) {}

  // Before anything is computed.
  void check_can_draw() const {
    if (run_.config.save_samples) train::check_can_draw(run_);
  }
  // Before the pair takes its memory.
  void encode_prompts();

  void record(ProgramSet& set) override {
    pair_ = std::make_unique<student::Pair>(
        set, job_, std::move(student::job_of(run_.request).teacher), run_.request.profile);
  }
  void load(Runner& runner) override;
  void start(Runner&, const FeedPosition&) override {}

  std::int64_t epoch() const override { return epochs_done(examples_) + 1; }
  bool last_of_epoch() const override {
    return epochs_done(examples_ + per_step()) > epochs_done(examples_);
  }
  std::vector<std::string> sample_ids() const override {
    std::vector<std::string> ids;
    for (std::int64_t i = 0; i < per_step(); ++i) {
      ids.push_back(
          std::to_string(prompt_of(run_.prompts->count(), run_.config.seed, examples_ + i)));
    }
    return ids;
  }

  void gradients(Runner& runner, std::int64_t examples, StepRecord& record) override;
  void update(Runner& runner, StepRecord& record) override {
    step_.run(runner, "update", values_of(record));
    add_lane_times(record.times, runner.lane_times());
  }
  void next_step() override { examples_ += per_step(); }
  std::vector<UpdatedTensor> trained() const override { return student().trained(); }
  Buffer grad_norm() const override { return student().grad_norm(); }

  bool evaluates() const override { return run_.config.save_samples; }
  bool evaluation_due(const TrainerState& state, bool) const override {
    const std::int64_t interval = run_.config.sample_interval;
    return state.step == run_.total_steps ||
           epochs_done(examples_) / interval > epochs_done(examples_ - per_step()) / interval;
  }
  // Samples are looked at.
  void evaluate(Runner& runner, std::int64_t step, RunRecords& records) override {
    for (const std::string& path : draw_samples(
             run_, student(), runner, states_, std::max<std::int64_t>(1, epochs_done(examples_)))) {
      records.event(step, "sample", path);
    }
  }

  void put_state(TrainerState& state) const override {
    state.epoch = epoch();
    state.batches = 0;  // a sample's number says all
  }
  void take_state(const TrainerState& state, bool) override { examples_ = state.examples; }

  std::string file_name() const override { return ""; }  // save_student() names them
  std::vector<std::string> save(Runner& runner, const SaveTarget& target, std::int64_t) override {
    save_student(target.folder, run_.student, [&](const std::string& name) {
      const auto& all = student().parameters();
      const auto p = std::ranges::find(all, name, &student::Parameter::name);
      return saved_tensor(name, runner, p->value).source;
    });
    return {target.folder};
  }

 private:
  const student::Student& student() const { return pair_->student(); }
  std::int64_t per_step() const { return run_.samples_per_step(); }
  std::int64_t epochs_done(std::int64_t examples) const { return examples / run_.prompts->count(); }
  StepValues values_of(const StepRecord& record) const {
    return {.step = record.step, .seed = run_.config.seed, .learning_rate = record.lr};
  }
  void make_distill_batch(std::int64_t number, std::span<DistillSample> distill_batch);

  DistillRun run_;
  student::PairJob job_;
  TextStates states_;
  std::unique_ptr<student::Pair> pair_;
  std::optional<DistillBatches> distill_batches_;
  std::int64_t examples_ = 0;  // shown
};

// The prompts that the run will show, one micro-batch further than it trains: the teacher is asked
// one ahead.
void DistillTask::encode_prompts() {
  const DistillConfig& c = run_.config;
  const std::int64_t prompts = run_.prompts->count();
  const std::int64_t shown = run_.total_steps * run_.samples_per_step() + c.batch_size;
  infer::TextEncoderOptions options;
  options.device = run_.request.backend.device;
  options.budget = run_.request.budget;
  if (options.device == Device::cpu) options.threads = run_.request.backend.threads;
  const std::int64_t most = run_.pair().teacher.text_len;
  encode_missing(
      states_, std::min(prompts, shown),
      [&](std::int64_t i) {
        return run_.prompts->at(shown >= prompts ? i : prompt_of(prompts, c.seed, i));
      },
      run_.files, most, options);
  if (!c.save_samples) return;
  const std::vector<std::string> texts = sample_prompts(run_);
  encode_missing(
      states_, std::ssize(texts), [&](std::int64_t i) { return texts[to_size(i)]; }, run_.files,
      most, options);
}

// Noise, time and prompt depend on the seed and the sample's number in the run alone.
void DistillTask::make_distill_batch(std::int64_t number, std::span<DistillSample> distill_batch) {
  const DistillConfig& c = run_.config;
  const auto width = to_size(run_.student.text_dim);
  std::int64_t longest = 1;
  for (std::size_t i = 0; i < distill_batch.size(); ++i) {
    DistillSample& l = distill_batch[i];
    const std::int64_t sample = number * c.batch_size + static_cast<std::int64_t>(i);
    const std::string prompt = run_.prompts->at(prompt_of(run_.prompts->count(), c.seed, sample));
    const std::int64_t tokens = states_.read(prompt, l.context);
    longest = std::max(longest, tokens);
    infer::mean_rows(l.context.first(to_size(tokens) * width), 1, l.text);
    fill_normal(random_source(c.seed, "distill_noise", sample, "latent"), 0, l.latent.data(),
                std::ssize(l.latent));
    const std::uint32_t word = random_source(c.seed, "distill_time", sample, "t").word(0);
    l.t = static_cast<double>((std::uint64_t{word} * 1000) >> 32);
  }
  // The mean is over the padded tokens: those of the longest prompt of the batch.
  for (const DistillSample& l : distill_batch) {
    for (float& x : l.text) x /= static_cast<float>(longest);
  }
}

void DistillTask::load(Runner& runner) {
  const DistillConfig& c = run_.config;
  distill_batches_.emplace(
      *pair_, runner,
      [this](std::int64_t number, std::span<DistillSample> distill_batch) {
        make_distill_batch(number, distill_batch);
      },
      c.literal ? TeacherInput::zeros : TeacherInput::repeated);
  distill_batches_->load();
  const student::InitialWeights first(
      run_.student, run_.pair().teacher, *run_.teacher, *run_.names,
      c.literal ? student::AttentionStart::truncated : student::AttentionStart::each, c.seed);
  for (const student::Parameter& p : student().parameters()) {
    const std::vector<float> values = first.of(p.name, runner.view(p.value).shape);
    runner.write(p.value, std::as_bytes(std::span(values)));
  }
  runner.run("init_state");
}

void DistillTask::gradients(Runner& runner, std::int64_t, StepRecord& record) {
  const std::int64_t parts = run_.config.gradient_accumulation;
  const StepValues values = values_of(record);
  step_.run(runner, student::Student::kZero, values);
  for (std::int64_t i = 0; i < parts; ++i) {
    distill_batches_->learn((record.step - 1) * parts + i,
                            [&](const char* program) { step_.run(runner, program, values); });
    add_lane_times(record.times, runner.lane_times());
  }
  record.loss = *runner.view(student().loss()).as<double>();
  step_.run(runner, "grad_norm", values);
  record.grad_norm = *runner.view(student().grad_norm()).as<float>();
}

// What the loop reads of it.
TrainConfig loop_config(const DistillConfig& c) {
  TrainConfig t;
  t.source = c.student_config;
  t.output_dir = c.output_dir;
  t.output_name = "student";  // its files stand beside the run's folder
  t.resume = c.resume;
  t.optimizer = c.optimizer;
  t.seed = c.seed;
  if (c.checkpoint_steps > 0) t.checkpoint.steps = c.checkpoint_steps;
  t.evaluate_before_first_step = false;
  t.keep_checkpoints = c.keep_checkpoints;
  t.steps_per_print = c.logging_steps;
  t.memory_line_steps = c.memory_line_steps;
  t.webhook = false;
  return t;
}

}  // namespace

TrainOutcome distill(DistillRun run, fit::PlannedRun planned, const TrainOptions& options) {
  RunSetup setup;
  setup.config = loop_config(run.config);
  setup.total_steps = run.total_steps;
  setup.schedule = run.schedule;
  setup.backend = planned.set.backend;
  setup.model = run.files.transformer;
  setup.model_hash = run.model_hash;
  setup.device = planned.plan.peak_of(Tier::device);
  setup.host = planned.plan.peak_of(Tier::host);
  setup.steps = planned.steps;
  setup.info = info_of(run, planned, options.command);
  setup.optimizer_flag = "--optimizer";
  auto task = std::make_unique<DistillTask>(
      std::move(run), planned.job.as<student::FitJob>().under(planned.policy));
  planned = {};  // its recording is the same as the one that follows, without kernels
  malloc_trim(0);
  task->check_can_draw();
  while_doing("encoding the prompts", [&] { task->encode_prompts(); });
  return train(std::move(setup), std::move(task), options);
}

}  // namespace ballast::train
