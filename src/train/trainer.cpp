#include "train/trainer.h"

#include <algorithm>

#include "core/error.h"
#include "core/log.h"
#include "core/system_limits.h"
#include "ops/linear/sgemm.h"
#include "plan/profile.h"
#include "report/last_run.h"
#include "report/rank_records.h"
#include "train/checkpoint/resumed_checkpoint.h"
#include "train/run/run_summary.h"
#include "train/training_loop.h"

namespace ballast::train {
namespace {

// Steps between two checks of the trained tensors. A NaN in one that the step uses shows in the
// loss at once; others (the other expert's, rows of words that did not occur, infinities) do not.
constexpr std::int64_t kStepsPerCheck = 100;

// Seconds, as predicted: a lane that is busy for much longer hangs.
double longest_instruction(const ProgramSet& set) {
  const MachineProfile profile = cpu_profile(set.backend.threads);
  double longest = 0;
  for (const Program& p : set.programs) {
    for (const Instruction& ins : p.instructions) {
      longest = std::max(longest, predicted_seconds(set, ins, profile));
    }
  }
  return longest;
}

RunFolder open_folder(const RunSetup& run, const Ranks& ranks) {
  const TrainConfig& c = run.config;
  if (!ranks.leads()) return RunFolder::shared(c.output_dir, c.resume);
  if (run.in_output_dir) return RunFolder::at(c.output_dir);
  return c.resume ? RunFolder::open(c.output_dir, *c.resume) : RunFolder::create(c.output_dir);
}

}  // namespace

TrainingLoop::TrainingLoop(RunSetup setup, std::unique_ptr<TrainingTask> task,
                           const TrainOptions& options)
    : options_(options),
      run_(std::move(setup)),
      folder_(open_folder(run_, options.ranks)),
      names_(run_.in_output_dir ? transformers_names() : CheckpointNames()),
      task_(std::move(task)),
      planned_(run_.info.planned),
      nan_guard_(run_.config.on_nan),
      save_("save_every_n", run_.config.save, global_batch(run_.config)),
      checkpoint_("checkpoint_every_n", run_.config.checkpoint, global_batch(run_.config)),
      evaluate_("eval_every_n", run_.config.evaluate, global_batch(run_.config)),
      preview_("[preview] every_n", run_.config.preview.every, global_batch(run_.config)) {
  set_.backend = run_.backend;
  RunnerOptions runner;
  if (options.check_nan) runner.debug = {.order = Order::recorded, .check_nan = true};
  runner.scratch_folder = folder_.path();
  if (set_.backend.device == Device::cuda) open_gpu();
  RunMemory memory = Runner::open_memory(set_.backend.device, run_.device, run_.host, runner);
  task_->use_list(StepPrograms(run_.steps));
  task_->record(set_);
  plan_ = plan_memory(set_);
  check(plan_.peak == std::array{run_.device, run_.host, run_.disk},
        "planned {}, {} and {}, recorded {}, {} and {}", run_.device, run_.host, run_.disk,
        plan_.peak_of(Tier::device), plan_.peak_of(Tier::host), plan_.peak_of(Tier::disk));
  for (const RankGroup& g : set_.groups) {
    communicators_.push_back(options.ranks.join(g.name, g.mine, g.size));
    runner.communicators.push_back(communicators_.back().get());
  }
  runner_ = std::make_unique<Runner>(set_, plan_, runner, std::move(memory));
  if (options.ranks.control != nullptr && !on_gpu()) {
    options.ranks.control->set_longest(longest_instruction(set_));
  }
  state_.world_size = options.ranks.size;
  state_.seed = run_.config.seed;
  state_.config_hash = run_.config_hash;
  state_.model_hash = run_.model_hash;
  state_.plan_hash = fmt::format("{}-{}", run_.device.count, run_.host.count);
}

TrainingLoop::~TrainingLoop() {
  if (options_.ranks.control != nullptr) options_.ranks.control->set_last_words({});
}

MemoryNumbers TrainingLoop::arenas() const {
  return {.device = runner_->high_water(Tier::device),
          .host = runner_->high_water(Tier::host),
          .disk = runner_->high_water(Tier::disk),
          .ram = {}};
}

void TrainingLoop::phase(Phase p) {
  monitor_->sample(arenas());
  const FlightState state = {.phase = p,
                             .step = state_.step,
                             .epoch = state_.epoch,
                             .loss = loss_,
                             .measured = monitor_->now(),
                             .most = monitor_->most()};
  if (flight_) flight_->update(state);
  tell_state(state);
}

bool TrainingLoop::step() {
  const Stopwatch begin;
  StepRecord record;
  record.step = state_.step + 1;
  record.epoch = task_->epoch();
  record.samples = task_->sample_ids();
  record.lr = learning_rate(run_.schedule, state_.step);
  phase(Phase::step);
  task_->begin_step();
  task_->gradients(*runner_, state_.examples, record);
  const bool good = !NanGuard::bad(record.loss, record.grad_norm);
  if (good) {
    nan_guard_.good();
    phase(Phase::update);
    task_->update(*runner_, record);
    loss_ = record.loss;
    epoch_loss_ += record.loss;
    ++epoch_steps_;
  } else {
    // The weights are those of the step before: nothing of them is lost should the run end here.
    if (run_.config.on_nan == OnNan::stop) save_checkpoint_now("a step of no numbers follows");
    const std::string what = nan_guard_.skip({.step = record.step,
                                              .loss = record.loss,
                                              .gradient_norm = record.grad_norm,
                                              .learning_rate = record.lr,
                                              .samples = record.samples});
    log::warn("{}", what);
    records_->event(record.step, "nan", what);
  }
  state_.examples += std::ssize(record.samples);
  record.times.save = std::exchange(extra_seconds_, 0);
  record.seconds = begin.seconds();
  record_step(record);
  if (state_.step % kStepsPerCheck == 0) check_values();
  return good;
}

void TrainingLoop::record_step(StepRecord& record) {
  state_.step = record.step;
  const TrainConfig& c = run_.config;
  const bool exact = c.memory_line_steps > 0 && record.step % c.memory_line_steps == 0;
  record.planned = planned_;
  record.measured = monitor_->sample(arenas(), exact ? Counting::exact : Counting::quick);
  const bool shown = record.step % std::max<std::int64_t>(1, c.logging_steps) == 0;
  std::vector<Scalar> scalars = task_->scalars();
  const auto samples = std::ssize(record.samples);
  if (record.batches > 0 && record.seconds > 0) {
    samples_done_ += samples;
    batches_done_ += record.batches;
    step_seconds_ += record.seconds;
    const auto rate = [&](std::int64_t n) {
      return static_cast<float>(static_cast<double>(n) / record.seconds);
    };
    scalars.push_back({"train/samples_per_second", rate(samples)});
    scalars.push_back({"train/batches_per_second", rate(record.batches)});
  }
  if (records_) records_->step(record, x_axis_position(), shown, scalars);
  if (progress_) {
    progress_->step({.step = record.step,
                     .epoch = record.epoch,
                     .loss = record.loss,
                     .seconds = record.seconds,
                     .planned = record.planned,
                     .measured = record.measured,
                     .samples = samples,
                     .batches = record.batches});
  }
  report_progress(record);
  if (exact) memory_line();
  if (options_.on_step) options_.on_step(record);
}

std::int64_t TrainingLoop::x_axis_position() const {
  return run_.config.examples_on_x_axis ? state_.examples : state_.step;
}

void TrainingLoop::memory_line() {
  const MemoryNumbers& now = monitor_->now();
  event("memory", fmt::format("{} {} of {}, {} {} of {}, process {} of {} planned",
                              display_name_of("device", on_gpu()), now.device, planned_.device,
                              display_name_of("host", on_gpu()), now.host, planned_.host, now.ram,
                              planned_.ram));
  if (const auto above = monitor_->above_plan()) {
    log::warn("more {} in use than planned: {} of {}", display_name_of(above->what, on_gpu()),
              above->most, above->planned);
  }
}

// What the profile could only estimate.
void TrainingLoop::context_line() {
  if (!on_gpu()) return;
  const Bytes arena = plan_.peak_of(Tier::device), all = gpu_memory_of_process();
  const std::string line =
      fmt::format("CUDA context and libraries take {} of GPU memory, {} planned; buffers {}",
                  all - std::min(arena, all), planned_.device - arena, arena);
  log::info("{}", line);
  event("memory", line);
}

void TrainingLoop::evaluate() {
  phase(Phase::evaluate);
  const Stopwatch begin;
  task_->evaluate(*runner_, state_.step, *records_);
  records_->scalar("eval/eval_time_sec", begin.seconds());
}

void TrainingLoop::preview() {
  phase(Phase::evaluate);
  constexpr std::string_view kFolder = "previews";
  const Stopwatch begin;
  const std::vector<DrawnPreview> drawn =
      task_->preview(*runner_, state_.step, fmt::format("{}/{}", folder_.path(), kFolder),
                     [&] { return signal_ && signal_->requested(); });
  for (const DrawnPreview& d : drawn) {
    event("preview", fmt::format("{}/{}: {}", kFolder, d.file, d.prompt));
    if (!d.sheet.bytes.empty()) records_->sample(state_.step, d.number, d.sheet);
  }
  if (!drawn.empty()) {
    log::info("step {}: {} preview{} in {}/{}, {:.1f} s", state_.step, drawn.size(),
              drawn.size() == 1 ? "" : "s", folder_.path(), kFolder, begin.seconds());
  }
}

void TrainingLoop::after_step(bool last_of_epoch) {
  const StepDone done = {.step = state_.step, .epoch_finished = last_of_epoch ? state_.epoch : 0};
  if (last_of_epoch) {
    if (epoch_steps_ > 0) {
      const double mean = epoch_loss_ / static_cast<double>(epoch_steps_);
      if (records_) records_->scalar("train/epoch_loss", mean);
      task_->epoch_ended(mean);
    }
    epoch_loss_ = 0;
    epoch_steps_ = 0;
    ++state_.epoch;
    state_.batches = 0;
  } else {
    ++state_.batches;
  }
  task_->next_step();
  // The other ranks wait in the next exchange.
  if (leads() && task_->evaluates() &&
      task_->evaluation_due(state_, static_cast<bool>(evaluate_.due(done)))) {
    evaluate();
    evaluate_.done();
    if (task_->wants_checkpoint()) save_checkpoint_now("the best so far");
  }
  if (const Due due = save_.due(done)) {
    save(due.epoch ? SavePoint{SavePoint::Kind::epoch, done.epoch_finished}
                   : SavePoint{SavePoint::Kind::step, done.step});
    save_.done();
  }
  if (checkpoint_.due(done)) {
    save_checkpoint_now("as configured");
    checkpoint_.done();
  }
  // Last: they may take long, and what is to be kept is on disk by then.
  if (leads() && task_->draws_previews() && preview_.due(done)) preview();
}

// What the run leaves for `ballast doctor`, from before anything can fail.
void TrainingLoop::open_flight_record() {
  monitor_.emplace(planned_, on_gpu() ? gpu_memory_of_process : std::function<Bytes()>());
  if (leads()) remove_rank_records(folder_.path());  // of an earlier start, with other ranks
  const Ranks& ranks = options_.ranks;
  if (!leads() && !ranks.share) return;  // it does not know the run's folder
  const std::string folder = ranks.share ? ranks.share(folder_.path()) : folder_.path();
  const std::string path = flight_record_path(folder, ranks.rank);
  flight_.emplace(path, FlightStart{.command = run_.info.command,
                                    .folder = folder,
                                    .total_steps = run_.total_steps,
                                    .planned = planned_,
                                    .allowed = run_.info.allowed,
                                    .rank = ranks.rank,
                                    .ranks = ranks.size});
  if (leads() && options_.remember) remember_last_run(path);
  if (ranks.control == nullptr) return;
  put_text(control_state_.folder, folder);
  // Where this rank's own thread does not come to its end.
  ranks.control->set_last_words([this](const ControlReport& report) {
    flight_->phase(Phase::failed, report.line.empty() ? report.text : report.line);
  });
}

void TrainingLoop::load() {
  if (leads()) {
    keep_configs();
    task_->prepare(folder_.path());
  }
  phase(Phase::load);
  if (!on_gpu() || computes_on_host(set_)) ops::warm_up_blas(runner_->compute_threads());
  task_->load(*runner_);
  resume();
  check_same_step();
  if (!run_.in_output_dir || !leads()) return;
  // Of a run that was here before, or that goes back.
  const int later = remove_later_checkpoints(folder_.path(), state_.step, names_);
  if (later > 0) {
    log::warn("{}: {} checkpoints of later steps were removed", folder_.path(), later);
  }
}

void TrainingLoop::start() {
  const TrainConfig& c = run_.config;
  if (leads()) {
    records_.emplace(folder_.path(), run_.info, state_.step, x_axis_position(),
                     run_.in_output_dir ? resumed_.has_value() : c.resume.has_value(),
                     options_.on_record);
    context_line();
    progress_.emplace(TrainProgress::Options{.total = run_.total_steps,
                                             .done = state_.step,
                                             .print_every = c.steps_per_print,
                                             .gpu = on_gpu()});
    open_webhook();
    notify(WebhookMessage::Kind::start, fmt::format("started, {} steps", run_.total_steps));
  }
  task_->start(*runner_, {.step = state_.step + 1, .epoch = state_.epoch, .batch = state_.batches});
  if (!leads()) return;
  if (task_->evaluates() && c.evaluate_before_first_step && state_.step == 0) evaluate();
  if (task_->draws_previews() && c.preview.at_first && state_.step == 0) preview();
}

bool TrainingLoop::take_steps() {
  bool stopped = false;
  std::optional<std::string> early;
  while (state_.step < run_.total_steps && !stopped && !ends_early_) {
    const bool last_of_epoch = task_->last_of_epoch();
    step();
    after_step(last_of_epoch);
    if (leads()) early = task_->ends_early(state_);
    stopped = serve_requests(early.has_value());
  }
  if (early && !stopped) {
    log::info("stopping early: {}", *early);
    event("early_stop", *early);
  }
  return stopped;
}

bool TrainingLoop::serve_requests(bool end_early) {
  const FileRequest asked = leads() ? folder_.take_request() : FileRequest::none;
  const bool signalled = signal_ && signal_->requested();
  const bool save = signal_ && signal_->take_save_request();
  std::uint32_t wish = save ? kSave : 0;
  if (signalled || asked == FileRequest::save_quit || (options_.stop && options_.stop())) {
    wish |= kStop;
  }
  if (end_early) wish |= kEndEarly;
  const std::uint32_t agreed = task_->agree(*runner_, wish);
  if (asked == FileRequest::save) save_checkpoint_now("asked for by the file `save`");
  if (agreed & kSave) save_checkpoint_now("asked for by SIGUSR1");
  if (signalled) event("signal", signal_->name());
  ends_early_ = agreed & kEndEarly;
  // Who asks for an end in the last step gets it, and the model with it.
  return state_.step < run_.total_steps && (agreed & kStop);
}

// All say their step and its complement: together they are those of one where all are the same.
void TrainingLoop::check_same_step() {
  const auto step = static_cast<std::uint32_t>(state_.step);
  if (task_->agree(*runner_, step) == step && task_->agree(*runner_, ~step) == ~step) return;
  fail(ErrorCode::input,
       fmt::format("rank {} continues after step {}, others do not: they read other checkpoints",
                   options_.ranks.rank, state_.step),
       {{"one output folder for all ranks", "every rank reads the same checkpoints"}});
}

TrainOutcome TrainingLoop::outcome(bool stopped) {
  TrainOutcome outcome = {.folder = folder_.path(),
                          .steps = state_.step,
                          .last_loss = loss_,
                          .stopped = stopped,
                          .report = finish(stopped),
                          .planned = planned_.ram,
                          .measured = monitor_->most().ram,
                          .planned_gpu = on_gpu() ? planned_.device : Bytes{},
                          .measured_gpu = on_gpu() ? monitor_->most().device : Bytes{}};
  if (step_seconds_ > 0) {
    outcome.samples_per_second = static_cast<double>(samples_done_) / step_seconds_;
    outcome.batches_per_second = static_cast<double>(batches_done_) / step_seconds_;
  }
  return outcome;
}

TrainOutcome TrainingLoop::run() {
  running_ = {};
  if (run_.config.resume) resumed_ = find_resumed();
  require_same_resume();
  if (options_.on_folder && leads()) options_.on_folder(folder_.path());
  open_flight_record();
  try {
    if (options_.handle_signals) signal_.emplace();
    load();
    start();
    return outcome(take_steps());
  } catch (Error& e) {
    e.add_trail(fmt::format(
        "training in {}, {} steps done{}", folder_.path(), state_.step,
        checkpointed_step_ < 0
            ? std::string(", no checkpoint yet")
            : fmt::format(", the newest checkpoint is of step {}", checkpointed_step_)));
    failed(e);
    throw;
  } catch (const std::bad_alloc&) {
    failed(out_of_memory());
    throw;
  } catch (const std::exception& e) {
    failed(Error(ErrorCode::internal, e.what()));
    throw;
  }
}

void TrainingLoop::failed(const Error& e) {
  std::string why = e.what();
  for (const std::string& doing : e.trail()) why += "; while " + doing;
  // First, so that the others hear it from this rank and not that it is gone.
  if (options_.ranks.control != nullptr) options_.ranks.control->tell(e);
  // Wherever it failed: no other rank waits for this one.
  for (const auto& group : communicators_) group->abort();
  if (flight_) flight_->phase(Phase::failed, why);
  event("failed", why);
  if (records_) {
    const std::string report = records_->finish(state_.step);
    if (!report.empty()) log::info("report  {}", report);
  }
  notify(WebhookMessage::Kind::stop, fmt::format("failed at step {}: {}", state_.step, why));
}

TrainOutcome train(RunSetup setup, std::unique_ptr<TrainingTask> task,
                   const TrainOptions& options) {
  return TrainingLoop(std::move(setup), std::move(task), options).run();
}

}  // namespace ballast::train
