#include "train/seq2seq_trainer.h"

#include <malloc.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "core/error.h"
#include "core/log.h"
#include "core/random.h"
#include "io/toml_table.h"
#include "memory/gpu.h"
#include "ops/sgemm.h"
#include "report/last_run.h"
#include "report/secrets.h"
#include "train/checkpoint_search.h"
#include "train/run_summary.h"
#include "train/seq2seq_loop.h"
#include "train/stop_signal.h"
#include "train/transformers_folder.h"

namespace ballast::train {
namespace {

MemoryNumbers numbers_of(const Seq2SeqRun& run, const t5::PlannedRun& planned) {
  MemoryNumbers m = {.device = planned.plan.peak_of(Tier::device),
                     .host = planned.plan.peak_of(Tier::host),
                     .disk = {},
                     .ram = planned.needed(Tier::host)};
  if (run.request.backend.device == Device::cpu) {
    m.ram += planned.needed(Tier::device);
  } else {
    m.device = planned.needed(Tier::device);
  }
  return m;
}

RunInfo info_of(const Seq2SeqRun& run, const t5::PlannedRun& planned, const std::string& command) {
  const Seq2SeqConfig& c = run.config;
  RunInfo info;
  info.title = run.title;
  info.command = command;
  info.started = iso_time(
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count());
  info.total_steps = run.total_steps;
  info.summary = {
      {"model", run.checkpoints[0].path()},
      {"texts", fmt::format("{} pairs of {}", run.train->cache.samples(), c.train_file)},
      {"steps", fmt::format("{}, {} per epoch", run.total_steps, run.steps_per_epoch)},
      {"samples per step", run.shapes},
      {"optimizer", std::string(name_of(c.optimizer.kind))},
      {"learning rate",
       fmt::format("{:g}, {}", run.schedule.learning_rate, name_of(run.schedule.kind))},
      {"dropout", fmt::format("{:g}", run.request.job.dropout)},
      {"seed", std::to_string(c.seed)},
      {"policy", planned.policy.name}};
  info.environment = {{"machine", run.request.profile.description}};
  info.planned = numbers_of(run, planned);
  const Budget& b = run.request.budget;
  info.allowed = {.device = b.gpu, .host = b.host, .disk = b.disk, .ram = b.host};
  info.plan = plan_rows(planned.plan, planned.lines);
  if (!c.source.empty()) info.config = hide_secrets(TomlFile::read(c.source).text());
  info.notes = run.notes;
  return info;
}

Cadence every(std::int64_t steps) {
  Cadence c;
  if (steps > 0) c.steps = steps;
  return c;
}
Cadence each_epoch() {
  Cadence c;
  c.epochs = 1;
  return c;
}

std::int64_t global_batch(const Seq2SeqConfig& c) { return c.batch_size * c.accumulation; }

// What decides the numbers of a run, apart from its texts.
std::string hash_text(const Seq2SeqRun& run) {
  const Seq2SeqConfig& c = run.config;
  return fmt::format("{}|{}|{}|{}|{}|{}|{}|{}", c.batch_size, c.accumulation, c.group_by_length,
                     static_cast<int>(c.loss_mean), c.max_grad_norm, run.request.job.dropout,
                     run.schedule.learning_rate, run.total_steps);
}

template <class T>
std::span<T> span_of(Runner& runner, Buffer b) {
  const TensorView v = runner.view(b);
  return {v.as<T>(), static_cast<std::size_t>(v.elements())};
}

}  // namespace

void EarlyStop::take(double loss) {
  const bool better = std::isfinite(loss) && (checks == 0 || loss < best - gain_);
  ++checks;
  if (better) best = loss;
  worse = better ? 0 : worse + 1;
}

Seq2SeqLoop::Seq2SeqLoop(Seq2SeqRun run, t5::PlannedRun planned, const TrainOptions& options)
    : options_(options),
      run_(std::move(run)),
      folder_(RunFolder::at(run_.config.output_dir)),
      planned_(numbers_of(run_, planned)),
      info_(info_of(run_, planned, options.command)),
      nan_guard_(run_.config.on_nan),
      early_stop_(run_.config.patience, run_.config.least_gain),
      save_("save_steps", run_.config.save_steps < 0 ? each_epoch() : every(run_.config.save_steps),
            global_batch(run_.config)),
      evaluate_("eval_steps",
                run_.config.eval_steps == 0 ? each_epoch() : every(run_.config.eval_steps),
                global_batch(run_.config)) {
  t5::Seq2SeqJob job = run_.request.job;
  job.policy = planned.policy;
  const Bytes device = planned.plan.peak_of(Tier::device), host = planned.plan.peak_of(Tier::host);
  planned = {};  // its recording is the same as the one that follows, without kernels
  malloc_trim(0);
  set_.backend = run_.request.backend;
  model_ = std::make_unique<t5::Seq2Seq>(set_, std::move(job), std::move(run_.request.groups));
  plan_ = plan_memory(set_);
  check(plan_.peak_of(Tier::device) == device && plan_.peak_of(Tier::host) == host,
        "planned {} and {}, recorded {} and {}", device, host, plan_.peak_of(Tier::device),
        plan_.peak_of(Tier::host));
  if (on_gpu()) open_gpu();
  RunnerOptions runner;
  if (options.check_nan) runner.debug = {.order = Order::recorded, .check_nan = true};
  runner_ = std::make_unique<Runner>(set_, plan_, runner);
  state_.seed = run_.config.seed;
  state_.config_hash = fmt::format("{:016x}", hash_of(hash_text(run_)));
  state_.model_hash = model_hash(run_.checkpoints);
  state_.plan_hash = fmt::format("{}-{}", device.count, host.count);
  if (run_.eval) eval_order_ = data::epoch_order(run_.eval->cache, run_.eval->batches, 1);
}

MemoryNumbers Seq2SeqLoop::arenas() const {
  return {.device = runner_->high_water(Tier::device),
          .host = runner_->high_water(Tier::host),
          .disk = {},
          .ram = {}};
}

void Seq2SeqLoop::phase(Phase p) {
  monitor_->sample(arenas());
  flight_->update({.phase = p,
                   .step = state_.step,
                   .epoch = state_.epoch,
                   .loss = loss_,
                   .measured = monitor_->now(),
                   .most = monitor_->most()});
}

void Seq2SeqLoop::load() {
  phase(Phase::load);
  if (!on_gpu()) ops::warm_up_blas(runner_->compute_threads());
  runner_->run("load");
  runner_->run("init_state");
}

void Seq2SeqLoop::enter_epoch() {
  order_ = data::epoch_order(run_.train->cache, run_.train->batches, state_.epoch);
}

// The inputs of one run: micro-batch after micro-batch; what is left over does
// not count.
void Seq2SeqLoop::bring(const t5::StepIo& io, std::span<const std::uint32_t> samples) {
  const data::TokenCache& cache =
      io.program.starts_with("eval") ? run_.eval->cache : run_.train->cache;
  const auto batch = static_cast<std::size_t>(io.shape.samples);
  for (std::size_t m = 0; m < io.micro_batches.size(); ++m) {
    const std::size_t first = std::min(samples.size(), m * batch);
    const t5::MicroBatchIo& to = io.micro_batches[m];
    data::read_batch(cache, samples.subspan(first, std::min(batch, samples.size() - first)),
                     {io.shape.source, io.shape.target}, run_.model().pad,
                     run_.model().decoder_start,
                     {.source = span_of<std::int32_t>(*runner_, to.source),
                      .source_lengths = span_of<std::int32_t>(*runner_, to.source_lengths),
                      .decoder_input = span_of<std::int32_t>(*runner_, to.decoder_input),
                      .labels = span_of<std::int32_t>(*runner_, to.labels)});
  }
}

namespace {

// The place of the smallest recorded shape that holds the samples; the largest
// come first.
std::size_t kind_of(const PairData& d, std::span<const std::uint32_t> samples) {
  const data::PairLength n = data::needed_shape(d.cache, samples);
  for (std::size_t k = d.shapes.size(); k-- > 0;) {
    if (d.shapes[k].source >= n.source && d.shapes[k].target >= n.target) return k;
  }
  check(false, "no shape was recorded for {} and {} tokens", n.source, n.target);
  return 0;
}

double sum_of_losses(Runner& runner, const t5::StepIo& io) {
  double sum = 0;
  for (const t5::MicroBatchIo& m : io.micro_batches) {
    for (const float x : span_of<float>(runner, m.losses)) sum += x;
  }
  return sum;
}

}  // namespace

double Seq2SeqLoop::run_batches(StepRecord& record) {
  const Seq2SeqConfig& c = run_.config;
  const PairData& d = *run_.train;
  const auto step = data::samples_of_step(order_, d.batches, state_.batches);
  const auto micro_batches = (std::ssize(step) + c.batch_size - 1) / c.batch_size;
  const std::int64_t labels = data::label_count(d.cache, step);
  if (model_->job().accumulates) runner_->run("zero_gradients");
  double loss = 0;
  for (std::int64_t r = 0;; ++r) {
    const auto samples = samples_of_run(step, c, r);
    if (samples.empty()) break;
    const t5::StepIo& io = model_->io().steps[kind_of(d, samples)];
    const double waits = now_seconds();
    bring(io, samples);
    record.times.data += now_seconds() - waits;
    const double weight =
        c.loss_mean == LossMean::tokens
            ? 1.0 / static_cast<double>(labels)
            : 1.0 / static_cast<double>(data::label_count(d.cache, samples) * micro_batches);
    *runner_->view(model_->io().label_weight).as<float>() = static_cast<float>(weight);
    runner_->run(io.program, {.step = record.step,
                              .seed = c.seed,
                              .first_sample = r * c.batch_size * c.micro_batches_per_visit});
    add_lane_times(record.times, runner_->lane_times());
    loss += weight * sum_of_losses(*runner_, io);
  }
  for (const std::uint32_t s : step) record.samples.push_back(std::to_string(s));
  return loss;
}

void Seq2SeqLoop::step() {
  const double begin = now_seconds();
  StepRecord record;
  record.step = state_.step + 1;
  record.epoch = state_.epoch;
  record.lr = learning_rate(run_.schedule, state_.step);
  phase(Phase::step);
  record.loss = run_batches(record);
  runner_->run("grad_norm");
  record.grad_norm = *runner_->view(model_->io().grad_norm).as<float>();
  if (!NanGuard::bad(record.loss, record.grad_norm)) {
    nan_guard_.good();
    phase(Phase::update);
    runner_->run("update",
                 {.step = ++updates_, .seed = run_.config.seed, .learning_rate = record.lr});
    add_lane_times(record.times, runner_->lane_times());
    loss_ = record.loss;
    epoch_loss_ += record.loss;
    ++epoch_steps_;
  } else {
    // The weights are those of the step before: nothing of them is lost should
    // the run end here.
    if (run_.config.on_nan == OnNan::stop) save_checkpoint_now("a step of no numbers follows");
    const std::string what = nan_guard_.skip({.step = record.step,
                                              .loss = record.loss,
                                              .gradient_norm = record.grad_norm,
                                              .learning_rate = record.lr,
                                              .samples = record.samples});
    log::warn("{}", what);
    event("nan", what);
  }
  state_.examples += std::ssize(record.samples);
  record.times.save = std::exchange(extra_seconds_, 0);
  record.seconds = now_seconds() - begin;
  record_step(record);
}

void Seq2SeqLoop::record_step(StepRecord& record) {
  state_.step = record.step;
  const Seq2SeqConfig& c = run_.config;
  const bool exact = c.memory_line_steps > 0 && record.step % c.memory_line_steps == 0;
  record.planned = planned_;
  record.measured = monitor_->sample(arenas(), exact ? Counting::exact : Counting::quick);
  const bool shown = record.step % c.logging_steps == 0;
  records_->step(record, shown ? std::optional(record.step) : std::nullopt);
  progress_->step({.step = record.step,
                   .epoch = record.epoch,
                   .loss = record.loss,
                   .seconds = record.seconds,
                   .planned = record.planned,
                   .measured = record.measured});
  if (exact) memory_line();
  if (options_.on_step) options_.on_step(record);
}

void Seq2SeqLoop::memory_line() {
  const MemoryNumbers& now = monitor_->now();
  event("memory", fmt::format("{} {} of {}, host arena {} of {}, process {} of {} planned",
                              on_gpu() ? "GPU" : "device arena", now.device, planned_.device,
                              now.host, planned_.host, now.ram, planned_.ram));
  if (const auto above = monitor_->above_plan()) {
    log::warn("more {} in use than planned: {} of {}", above->what, above->most, above->planned);
  }
}

double Seq2SeqLoop::evaluate() {
  phase(Phase::evaluate);
  const PairData& d = *run_.eval;
  double sum = 0;
  std::int64_t labels = 0;
  *runner_->view(model_->io().label_weight).as<float>() = 1;
  const std::int64_t steps = data::steps_per_epoch(std::ssize(eval_order_), d.batches);
  for (std::int64_t s = 0; s < steps; ++s) {
    const auto samples = data::samples_of_step(eval_order_, d.batches, s);
    const t5::StepIo& io = model_->io().eval_steps[kind_of(d, samples)];
    bring(io, samples);
    runner_->run(io.program, {.step = state_.step, .seed = run_.config.seed});
    sum += sum_of_losses(*runner_, io);
    labels += data::label_count(d.cache, samples);
  }
  const double loss = sum / static_cast<double>(labels);
  records_->eval(state_.step, "eval", loss);
  log::info("step {}: evaluation loss {:.5f}", state_.step, loss);
  return loss;
}

void Seq2SeqLoop::after_step() {
  const StepDone done = {.step = state_.step, .epoch_finished = last_of_epoch() ? state_.epoch : 0};
  if (done.epoch_finished > 0) {
    const double mean = epoch_steps_ > 0 ? epoch_loss_ / static_cast<double>(epoch_steps_) : NAN;
    records_->epoch_loss(state_.step, mean);
    if (!run_.eval) early_stop_.take(mean);
    epoch_loss_ = 0;
    epoch_steps_ = 0;
    ++state_.epoch;
    state_.batches = 0;
    if (state_.step < run_.total_steps) enter_epoch();
  } else {
    ++state_.batches;
  }
  if (run_.eval && evaluate_.due(done)) {
    early_stop_.take(evaluate());
    evaluate_.done();
  }
  if (save_.due(done)) {
    save_checkpoint_now("as configured");
    save_.done();
  }
}

TrainOutcome Seq2SeqLoop::run() {
  const Seq2SeqConfig& c = run_.config;
  began_ = now_seconds();
  find_checkpoint_to_resume();
  monitor_.emplace(planned_, on_gpu() ? gpu_memory_of_process : std::function<Bytes()>());
  const std::string flight = folder_.path() + "/" + std::string(kFlightFile);
  flight_.emplace(flight, FlightStart{.command = info_.command,
                                      .folder = folder_.path(),
                                      .total_steps = run_.total_steps,
                                      .planned = planned_,
                                      .allowed = info_.allowed});
  if (options_.remember) remember_last_run(flight);
  try {
    std::optional<StopSignal> signal;
    if (options_.handle_signals) signal.emplace();
    if (!c.source.empty()) folder_.copy_config(c.source);
    // Now, since the checkpoint that stands for the model may be rotated away.
    write_model_files(run_.model_folder, c.tokenizer, run_.model(), folder_.path());
    load();
    resume();
    if (const int later =
            remove_later_checkpoints(folder_.path(), state_.step, transformers_names())) {
      log::warn("{}: {} checkpoints of later steps were removed", folder_.path(), later);
    }
    records_.emplace(folder_.path(), info_, state_.step, resumed_.has_value());
    progress_.emplace(TrainProgress::Options{
        .total = run_.total_steps, .done = state_.step, .print_every = c.print_steps});
    webhook_ =
        c.webhook.empty() ? Webhook::from_environment() : std::make_unique<Webhook>(c.webhook);
    tell(WebhookMessage::Kind::start, fmt::format("started, {} steps", run_.total_steps));
    if (state_.step < run_.total_steps) enter_epoch();
    bool stopped = false, early = false;
    while (state_.step < run_.total_steps && !stopped && !early) {
      step();
      after_step();
      const FileRequest asked = folder_.take_request();
      if (asked == FileRequest::save) save_checkpoint_now("asked for by the file `save`");
      const bool signalled = signal && signal->requested();
      // Who asks for an end in the last step gets it, and the model with it.
      stopped = state_.step < run_.total_steps && (signalled || asked == FileRequest::save_quit ||
                                                   (options_.stop && options_.stop()));
      if (signalled) event("signal", signal->name());
      early = early_stop_.exhausted() && state_.step > c.patience_steps &&
              state_.epoch > c.patience_epochs;
    }
    if (early) {
      const std::string text = fmt::format("the loss has not been better than {:.5f} {} times",
                                           early_stop_.best, early_stop_.worse);
      log::info("stopping early: {}", text);
      event("early_stop", text);
    }
    return {.folder = folder_.path(),
            .steps = state_.step,
            .last_loss = loss_,
            .stopped = stopped,
            .report = finish(stopped),
            .planned = planned_.ram,
            .measured = monitor_->most().ram,
            .planned_gpu = on_gpu() ? planned_.device : Bytes{},
            .measured_gpu = on_gpu() ? monitor_->most().device : Bytes{}};
  } catch (Error& e) {
    e.add_trail(fmt::format(
        "training in {}, {} steps done{}", folder_.path(), state_.step,
        checkpointed_step_ < 0
            ? std::string(", no checkpoint yet")
            : fmt::format(", the newest checkpoint is of step {}", checkpointed_step_)));
    failed(e.what());
    throw;
  } catch (const std::exception& e) {
    failed(e.what());
    throw;
  }
}

void Seq2SeqLoop::failed(const char* why) {
  flight_->phase(Phase::failed, why);
  event("failed", why);
  tell(WebhookMessage::Kind::stop, fmt::format("failed at step {}: {}", state_.step, why));
}

void Seq2SeqLoop::tell(WebhookMessage::Kind kind, std::string text) {
  if (!webhook_) return;
  webhook_->send({.kind = kind, .title = info_.title, .text = std::move(text), .fields = {}});
}

TrainOutcome train_seq2seq(Seq2SeqRun run, t5::PlannedRun planned, const TrainOptions& options) {
  return Seq2SeqLoop(std::move(run), std::move(planned), options).run();
}

}  // namespace ballast::train
