#include "train/distiller.h"

#include <malloc.h>

#include <algorithm>
#include <chrono>

#include "core/error.h"
#include "core/log.h"
#include "core/random.h"
#include "infer/student_sampler.h"
#include "memory/gpu.h"
#include "models/student/initial_weights.h"
#include "models/student/student_files.h"
#include "report/flight_record.h"
#include "report/last_run.h"
#include "report/train_progress.h"
#include "train/clock.h"
#include "train/distill_samples.h"
#include "train/nan_guard.h"
#include "train/pair_runner.h"
#include "train/resumed_checkpoint.h"
#include "train/run_folder.h"
#include "train/run_records.h"
#include "train/run_summary.h"
#include "train/runner_tensors.h"
#include "train/stop_signal.h"
#include "train/text_states.h"

namespace ballast::train {
namespace {

MemoryNumbers planned_numbers(const student::PairRequest& request,
                              const student::PlannedPair& planned) {
  MemoryNumbers m;
  m.device = planned.plan.peak_of(Tier::device);
  m.host = planned.plan.peak_of(Tier::host);
  m.ram = planned.needed(Tier::host);
  if (request.backend.device == Device::cpu) {
    m.ram += planned.needed(Tier::device);
  } else {
    m.device = planned.needed(Tier::device);
  }
  return m;
}

RunInfo info_of(const DistillRun& run, const student::PlannedPair& planned,
                const std::string& command) {
  const DistillConfig& c = run.config;
  RunInfo info;
  info.title = fmt::format("distillation of {}", run.request.job.teacher.name);
  info.command = command;
  info.started = iso_time(
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count());
  info.total_steps = run.total_steps;
  info.summary = {{"teacher", run.files.transformer},
                  {"student", fmt::format("{} parameters", parameter_count(run.student))},
                  {"prompts", fmt::format("{} in {}", run.prompts->count(), c.data_path)},
                  {"steps", fmt::format("{}, {} per epoch", run.total_steps, run.steps_per_epoch)},
                  {"samples per step", std::to_string(run.samples_per_step())},
                  {"optimizer", std::string(name_of(c.optimizer.kind))},
                  {"learning rate", fmt::format("{:g}, {}", c.lr, name_of(c.schedule.kind))},
                  {"seed", std::to_string(c.seed)},
                  {"policy", text_of(planned)}};
  info.environment = {{"machine", run.request.profile.description}};
  info.planned = planned_numbers(run.request, planned);
  const Budget& b = run.request.budget;
  info.allowed = {.device = b.gpu, .host = b.host, .disk = b.disk, .ram = b.host};
  info.plan = plan_rows(planned.plan, planned.lines);
  info.notes = run.notes;
  return info;
}

class Distiller {
 public:
  Distiller(DistillRun run, student::PlannedPair planned, const TrainOptions& options)
      : options_(options),
        run_(std::move(run)),
        folder_(run_.config.resume ? RunFolder::open(run_.config.output_dir, *run_.config.resume)
                                   : RunFolder::create(run_.config.output_dir)),
        info_(info_of(run_, planned, options.command)),
        states_(run_.config.text_states, run_.files.text_encoder, run_.student.text_dim),
        nan_guard_(OnNan::stop) {
    job_ = planned.job;
    device_ = planned.plan.peak_of(Tier::device);
    host_ = planned.plan.peak_of(Tier::host);
    planned = {};  // its recording is the same as the one that follows, without kernels
    malloc_trim(0);
    state_.seed = run_.config.seed;
    state_.model_hash = run_.model_hash;
    state_.plan_hash = fmt::format("{}-{}", device_.count, host_.count);
  }

  TrainOutcome run();

 private:
  bool on_gpu() const { return run_.request.backend.device == Device::cuda; }
  Runner& runner() { return pair_->runner(); }
  const student::Student& student() const { return pair_->pair().student(); }

  void encode_prompts();
  void make_lessons(std::int64_t number, std::span<Lesson> lessons);
  void load();
  void resume();
  void step();
  void after_step(std::int64_t epochs_before);
  void save_checkpoint_now(const char* why);
  void save_student_now();
  void phase(Phase p);
  MemoryNumbers arenas() {
    return {.device = runner().high_water(Tier::device),
            .host = runner().high_water(Tier::host),
            .disk = {},
            .ram = {}};
  }
  void event(const char* kind, const std::string& text) {
    if (records_) records_->event(state_.step, kind, text);
    log::debug("step {}: {}: {}", state_.step, kind, text);
  }
  template <class Visit>
  void each_tensor(Visit&& visit) const {
    for (const UpdatedTensor& t : student().trained()) {
      visit(t.name, t.value);
      for (std::size_t s = 0; s < t.states.size(); ++s)
        visit(t.name + t.specs[s].suffix, t.states[s]);
    }
  }

  const TrainOptions options_;
  DistillRun run_;
  RunFolder folder_;
  RunInfo info_;
  TextStates states_;
  NanGuard nan_guard_;
  student::PairJob job_;
  Bytes device_, host_;
  std::optional<PairRunner> pair_;
  std::optional<FoundCheckpoint> resumed_;
  std::optional<RunRecords> records_;
  std::optional<MemoryMonitor> monitor_;
  std::optional<FlightRecorder> flight_;
  std::optional<TrainProgress> progress_;
  TrainerState state_;
  double loss_ = 0;
  double began_ = 0;
  std::int64_t checkpointed_step_ = -1;
};

void Distiller::phase(Phase p) {
  if (pair_) monitor_->sample(arenas());
  flight_->update({.phase = p,
                   .step = state_.step,
                   .epoch = state_.epoch,
                   .loss = loss_,
                   .measured = monitor_->now(),
                   .most = monitor_->most()});
}

// The prompts that the run will show, one micro-batch further than it trains: the teacher is asked
// one ahead.
void Distiller::encode_prompts() {
  const DistillConfig& c = run_.config;
  const std::int64_t prompts = run_.prompts->count();
  const std::int64_t shown = run_.total_steps * run_.samples_per_step() + c.batch_size;
  infer::TextEncoderOptions options;
  options.device = run_.request.backend.device;
  options.budget = run_.request.budget;
  if (options.device == Device::cpu) options.threads = run_.request.backend.threads;
  const std::int64_t most = run_.request.job.teacher.text_len;
  encode_missing(
      states_, std::min(prompts, shown),
      [&](std::int64_t i) {
        return run_.prompts->at(shown >= prompts ? i : prompt_of(prompts, c.seed, i));
      },
      run_.files, most, options);
  if (!c.save_samples) return;
  const std::vector<std::string> texts = sample_prompts(run_);
  encode_missing(
      states_, std::ssize(texts),
      [&](std::int64_t i) { return texts[static_cast<std::size_t>(i)]; }, run_.files, most,
      options);
}

// Noise, time and prompt depend on the seed and the sample's number in the run alone.
void Distiller::make_lessons(std::int64_t number, std::span<Lesson> lessons) {
  const DistillConfig& c = run_.config;
  const auto width = static_cast<std::size_t>(run_.student.text_dim);
  std::int64_t longest = 1;
  for (std::size_t i = 0; i < lessons.size(); ++i) {
    Lesson& l = lessons[i];
    const std::int64_t sample = number * c.batch_size + static_cast<std::int64_t>(i);
    const std::string prompt = run_.prompts->at(prompt_of(run_.prompts->count(), c.seed, sample));
    const std::int64_t tokens = states_.read(prompt, l.context);
    longest = std::max(longest, tokens);
    infer::mean_rows(l.context.first(static_cast<std::size_t>(tokens) * width), 1, l.text);
    fill_normal(random_source(c.seed, "distill_noise", sample, "latent"), 0, l.latent.data(),
                std::ssize(l.latent));
    const std::uint32_t word = random_source(c.seed, "distill_time", sample, "t").word(0);
    l.t = static_cast<double>((std::uint64_t{word} * 1000) >> 32);
  }
  // The mean is over the padded tokens: those of the longest prompt of the batch.
  for (const Lesson& l : lessons) {
    for (float& x : l.text) x /= static_cast<float>(longest);
  }
}

void Distiller::load() {
  const DistillConfig& c = run_.config;
  pair_.emplace(
      run_.request, job_,
      [this](std::int64_t number, std::span<Lesson> lessons) { make_lessons(number, lessons); },
      c.literal ? TeacherInput::zeros : TeacherInput::repeated,
      options_.check_nan ? RunnerOptions{.debug = {.order = Order::recorded, .check_nan = true}}
                         : RunnerOptions{});
  check(
      pair_->plan().peak_of(Tier::device) == device_ && pair_->plan().peak_of(Tier::host) == host_,
      "planned {} and {}, recorded {} and {}", device_, host_, pair_->plan().peak_of(Tier::device),
      pair_->plan().peak_of(Tier::host));
  run_.request.teacher.clear();  // recorded
  phase(Phase::load);
  pair_->load();
  const student::InitialWeights first(
      run_.student, run_.request.job.teacher, *run_.teacher, *run_.names,
      c.literal ? student::AttentionStart::truncated : student::AttentionStart::each, c.seed);
  for (const student::Parameter& p : student().parameters()) {
    const std::vector<float> values = first.of(p.name, pair_->set().spec(p.value).shape);
    runner().write(p.value, std::as_bytes(std::span(values)));
  }
  runner().run("init_state");
}

void Distiller::resume() {
  if (!run_.config.resume) return;
  std::vector<LoadedTensor> tensors;
  each_tensor([&](const std::string& name, Buffer b) {
    tensors.push_back(loaded_tensor(name, runner(), b));
  });
  auto found = find_resumed({.folder = folder_.path(),
                             .model = run_.files.transformer,
                             .model_hash = state_.model_hash,
                             .seed = state_.seed,
                             .optimizer = std::string(name_of(run_.config.optimizer.kind)),
                             .tensors = tensors});
  if (!found) return;
  const std::string plan = state_.plan_hash;
  state_ = found->state;
  state_.plan_hash = plan;
  load_checkpoint(found->folder, tensors);
  runner().run("after_restore");
  loss_ = state_.numbers["loss"];
  checkpointed_step_ = state_.step;
  log::info("resumed from {} at step {}", found->folder, state_.step);
}

void Distiller::step() {
  const DistillConfig& c = run_.config;
  const double begin = now_seconds();
  StepRecord record;
  record.step = state_.step + 1;
  record.epoch = state_.epoch;
  record.lr = learning_rate(run_.schedule, state_.step);
  phase(Phase::step);
  const StepValues values = {.step = record.step, .seed = c.seed, .learning_rate = record.lr};
  runner().run(student::Student::kZero, values);
  for (std::int64_t i = 0; i < c.gradient_accumulation; ++i) {
    pair_->learn(state_.step * c.gradient_accumulation + i, values);
    add_lane_times(record.times, runner().lane_times());
  }
  record.loss = *runner().view(student().loss()).as<double>();
  runner().run("grad_norm", values);
  record.grad_norm = *runner().view(student().grad_norm()).as<float>();
  if (NanGuard::bad(record.loss, record.grad_norm)) {
    save_checkpoint_now("a step of no numbers follows");
    nan_guard_.skip({.step = record.step,
                     .loss = record.loss,
                     .gradient_norm = record.grad_norm,
                     .learning_rate = record.lr,
                     .samples = {}});
  }
  phase(Phase::update);
  runner().run("update", values);
  add_lane_times(record.times, runner().lane_times());
  loss_ = record.loss;
  state_.step = record.step;
  state_.examples += run_.samples_per_step();
  record.seconds = now_seconds() - begin;
  const bool exact = c.memory_line_steps > 0 && record.step % c.memory_line_steps == 0;
  record.planned = info_.planned;
  record.measured = monitor_->sample(arenas(), exact ? Counting::exact : Counting::quick);
  records_->step(record, record.step);
  progress_->step({.step = record.step,
                   .epoch = record.epoch,
                   .loss = record.loss,
                   .seconds = record.seconds,
                   .planned = record.planned,
                   .measured = record.measured});
  if (options_.on_step) options_.on_step(record);
}

void Distiller::after_step(std::int64_t epochs_before) {
  const DistillConfig& c = run_.config;
  const std::int64_t epochs = state_.examples / run_.prompts->count();
  state_.epoch = epochs + 1;
  const bool last = state_.step == run_.total_steps;
  const bool due = epochs / c.sample_interval > epochs_before / c.sample_interval || last;
  if (c.save_samples && due) {
    phase(Phase::evaluate);
    for (const std::string& path :
         draw_samples(run_, student(), runner(), states_, std::max<std::int64_t>(1, epochs))) {
      event("sample", path);
    }
  }
  if (c.checkpoint_steps > 0 && state_.step % c.checkpoint_steps == 0) {
    save_checkpoint_now("as configured");
  }
}

void Distiller::save_checkpoint_now(const char* why) {
  if (checkpointed_step_ == state_.step) return;
  phase(Phase::save);
  const double now = now_seconds();
  state_.wall_seconds += now - std::exchange(began_, now);
  state_.numbers["loss"] = loss_;
  state_.texts[kOptimizerText] = name_of(run_.config.optimizer.kind);
  std::vector<SavedTensor> tensors;
  each_tensor([&](const std::string& name, Buffer b) {
    tensors.push_back(saved_tensor(name, runner(), b));
  });
  const std::string path = save_checkpoint(folder_.path(), state_, tensors);
  rotate_checkpoints(folder_.path(), run_.config.keep_checkpoints);
  checkpointed_step_ = state_.step;
  event("checkpoint", fmt::format("{} ({})", path, why));
}

void Distiller::save_student_now() {
  while_doing("saving the student", [&] {
    save_student(run_.config.output_dir, run_.student, [&](const std::string& name) {
      const auto& all = student().parameters();
      const auto p = std::ranges::find(all, name, &student::Parameter::name);
      return saved_tensor(name, runner(), p->value).source;
    });
  });
  event("save", run_.config.output_dir);
}

TrainOutcome Distiller::run() {
  const DistillConfig& c = run_.config;
  began_ = now_seconds();
  monitor_.emplace(info_.planned, on_gpu() ? gpu_memory_of_process : std::function<Bytes()>());
  const std::string flight = folder_.path() + "/" + std::string(kFlightFile);
  flight_.emplace(flight, FlightStart{.command = info_.command,
                                      .folder = folder_.path(),
                                      .total_steps = run_.total_steps,
                                      .planned = info_.planned,
                                      .allowed = info_.allowed});
  if (options_.remember) remember_last_run(flight);
  bool stopped = false;
  try {
    std::optional<StopSignal> signal;
    if (options_.handle_signals) signal.emplace();
    folder_.copy_config(c.student_config);
    while_doing("encoding the prompts", [&] { encode_prompts(); });
    while_doing("loading teacher and student", [&] { load(); });
    resume();
    records_.emplace(folder_.path(), info_, state_.step, c.resume.has_value());
    progress_.emplace(TrainProgress::Options{
        .total = run_.total_steps, .done = state_.step, .print_every = c.logging_steps});
    while (state_.step < run_.total_steps && !stopped) {
      const std::int64_t epochs = state_.examples / run_.prompts->count();
      step();
      after_step(epochs);
      const FileRequest asked = folder_.take_request();
      if (asked == FileRequest::save) save_checkpoint_now("asked for by the file `save`");
      stopped = state_.step < run_.total_steps &&
                ((signal && signal->requested()) || asked == FileRequest::save_quit ||
                 (options_.stop && options_.stop()));
    }
    save_checkpoint_now(stopped ? "stopped" : "finished");
    if (!stopped) save_student_now();
    monitor_->sample(arenas(), Counting::exact);
    event(stopped ? "stopped" : "finish", fmt::format("{} steps, loss {:.5g}", state_.step, loss_));
    const std::string report = records_->finish(state_.step);
    phase(stopped ? Phase::stopped : Phase::finished);
    return {.folder = folder_.path(),
            .steps = state_.step,
            .last_loss = loss_,
            .stopped = stopped,
            .report = report,
            .planned = info_.planned.ram,
            .measured = monitor_->most().ram,
            .planned_gpu = on_gpu() ? info_.planned.device : Bytes{},
            .measured_gpu = on_gpu() ? monitor_->most().device : Bytes{}};
  } catch (const std::exception& e) {
    flight_->phase(Phase::failed, e.what());
    event("failed", e.what());
    throw;
  }
}

}  // namespace

TrainOutcome distill(DistillRun run, student::PlannedPair planned, const TrainOptions& options) {
  return Distiller(std::move(run), std::move(planned), options).run();
}

}  // namespace ballast::train
