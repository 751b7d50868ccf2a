#include <malloc.h>

#include <algorithm>
#include <filesystem>

#include "core/error.h"
#include "core/log.h"
#include "core/progress.h"
#include "core/random.h"
#include "core/stopwatch.h"
#include "core/to_size.h"
#include "data/tokenizer.h"
#include "infer/text_generator.h"
#include "io/atomic_file.h"
#include "train/checkpoint/transformers_folder.h"
#include "train/checkpoint/transformers_state.h"
#include "train/recipes/rouge.h"
#include "train/recipes/seq2seq_run.h"
#include "train/recipes/seq2seq_summary.h"
#include "train/run/run_summary.h"
#include "train/training_loop.h"

namespace ballast::train {
namespace {

// The best of a run's evaluations, and how long ago it was.
class BestEvaluation {
 public:
  struct Rule {
    bool greater = false;       // is better
    double min_gain = 0;        // one that is better by less is not better
    std::int64_t patience = 0;  // so many in a row that are not better are enough; 0: never
  };
  explicit BestEvaluation(const Rule& rule) : rule_(rule) {}

  // A value that is no number is not better.
  void take(std::int64_t step, double value);
  bool exhausted() const { return rule_.patience > 0 && worse >= rule_.patience; }

  double best = 0;
  std::int64_t best_step = -1;         // -1: none yet
  std::int64_t checks = 0, worse = 0;  // how many in all, and since the best

 private:
  Rule rule_;
};

void BestEvaluation::take(std::int64_t step, double value) {
  const double gain = rule_.greater ? value - best : best - value;
  const bool better = std::isfinite(value) && (checks == 0 || gain > rule_.min_gain);
  ++checks;
  if (better) best = value, best_step = step;
  worse = better ? 0 : worse + 1;
}

constexpr const char* kTexts = "train_texts";               // in TrainerState::texts
constexpr const char* kShared = "micro_batches_per_visit";  // in TrainerState::counts

template <class T>
std::span<T> span_of(Runner& runner, Buffer b) {
  const TensorView v = runner.view(b);
  return {v.as<T>(), to_size(v.elements())};
}

// The place of the smallest recorded shape that holds the samples; the largest come first.
std::size_t kind_of(const PairData& d, std::span<const std::uint32_t> samples) {
  const data::PairLength n = data::needed_shape(d.cache, samples);
  for (std::size_t k = d.shapes.size(); k-- > 0;) {
    if (d.shapes[k].source >= n.source && d.shapes[k].target >= n.target) return k;
  }
  check(false, "no shape was recorded for {} and {} tokens", n.source, n.target);
  return 0;
}

// Each micro-batch's times its labels' weight.
double loss_of(Runner& runner, const t5::StepIo& io) {
  double loss = 0;
  for (const t5::MicroBatchIo& m : io.micro_batches) {
    double sum = 0;
    for (const float x : span_of<float>(runner, m.losses)) sum += x;
    loss += *runner.view(m.label_weight).as<float>() * sum;
  }
  return loss;
}

// An encoder-decoder and all of its weights, or its adapters, on pairs of texts.
class Seq2SeqTask final : public TrainingTask {
 public:
  Seq2SeqTask(Seq2SeqRun run, MemoryPolicy policy)
      : run_(std::move(run)),
        policy_(std::move(policy)),
        best_({.greater = config().greater_is_better,
               .min_gain = config().min_gain,
               .patience = config().patience}) {
    if (run_.eval) eval_order_ = data::epoch_order(run_.eval->cache, run_.eval->batches, 1);
  }

  std::optional<FoundCheckpoint> find_checkpoint(const ResumedRun& run) override;
  void prepare(const std::string& folder) override { write_files(run_.model_folder, folder); }
  void record(ProgramSet& set) override {
    t5::Seq2SeqJob job = t5::job_of(run_.request).seq2seq;
    job.policy = policy_;
    model_ = std::make_unique<t5::Seq2Seq>(set, std::move(job),
                                           std::move(t5::job_of(run_.request).weights));
  }
  void load(Runner& runner) override {
    runner.run("load");
    init_adapters(runner);
    runner.run("init_state");
  }
  void start(Runner&, const FeedPosition& from) override {
    at_ = from;
    if (at_.step <= run_.total_steps) enter_epoch();
  }

  std::int64_t epoch() const override { return at_.epoch; }
  bool last_of_epoch() const override { return at_.batch + 1 == run_.steps_per_epoch; }
  std::vector<std::string> sample_ids() const override {
    std::vector<std::string> ids;
    for (const std::uint32_t s : samples()) ids.push_back(std::to_string(s));
    return ids;
  }

  void gradients(Runner& runner, std::int64_t examples, StepRecord& record) override;
  void update(Runner& runner, StepRecord& record) override {
    step_.run(runner, "update",
              {.step = ++updates_, .seed = config().seed, .learning_rate = record.lr});
    add_lane_times(record.times, runner.lane_times());
  }
  std::vector<UpdatedTensor> trained() const override { return model_->io().trained; }
  Buffer grad_norm() const override { return model_->io().grad_norm; }
  void next_step() override {
    const bool last = last_of_epoch();
    ++at_.step;
    at_.batch = last ? 0 : at_.batch + 1;
    if (!last) return;
    ++at_.epoch;
    if (at_.step <= run_.total_steps) enter_epoch();
  }

  bool evaluates() const override { return run_.eval.has_value(); }
  void evaluate(Runner& runner, std::int64_t step, RunRecords& records) override;
  bool wants_checkpoint() const override { return config().load_best && best_.worse == 0; }
  void epoch_ended(double mean_loss) override {
    if (!run_.eval) best_.take(at_.step, mean_loss);
  }
  std::optional<std::string> ends_early(const TrainerState& state) const override {
    const bool ends = best_.exhausted() && state.step > config().patience_steps &&
                      state.epoch > config().patience_epochs;
    if (!ends) return std::nullopt;
    return fmt::format("the {} has not been better than {:.5f} {} times",
                       name_of(config().best_metric), best_.best, best_.worse);
  }

  std::vector<SavedTensor> saved_tensors(Runner& runner) const override {
    return in_files(TrainingTask::saved_tensors(runner));
  }
  std::vector<LoadedTensor> loaded_tensors(Runner& runner, bool values_only) const override {
    return in_files(TrainingTask::loaded_tensors(runner, values_only), values_only);
  }
  void put_state(TrainerState& state) const override;
  void take_state(const TrainerState& state, bool values_only) override;
  void resumed(TrainerState& state) override {
    const std::int64_t shared = state.count(kShared, run_.micro_batches_per_visit);
    if (shared != run_.micro_batches_per_visit) {
      log::warn(
          "{}: {} micro-batches shared a visit, now {} do: padding differs, and with it the "
          "rounding (--micro_batches_per_visit {})",
          run_.resume_from, shared, run_.micro_batches_per_visit, shared);
    }
    if (state.texts[kTexts] == run_.train->cache.key()) return;
    log::warn("{}: the texts were others: the epoch continues with today's", run_.resume_from);
    state.batches = std::min(state.batches, run_.steps_per_epoch - 1);
  }
  void add_files(const std::string& run, const std::string& to, const TrainerState& state) override;
  std::int64_t protected_step() const override { return config().load_best ? best_.best_step : -1; }
  void choose_final_model(Runner& runner, const std::string& run) override;

  std::string file_name() const override { return config().lora ? t5::kAdapterFile : kModelFile; }
  std::vector<std::string> save(Runner& runner, const SaveTarget& target,
                                std::int64_t step) override;

 private:
  const Seq2SeqConfig& config() const { return run_.config; }
  std::span<const std::uint32_t> samples() const {
    return data::samples_of_step(order_, run_.train->batches, at_.batch);
  }
  void enter_epoch() {
    order_ = data::epoch_order(run_.train->cache, run_.train->batches, at_.epoch);
  }
  void write_files(const std::string& from, const std::string& to) const {
    const std::string& tokenizer = from == run_.model_folder ? config().tokenizer : "";
    if (config().lora) return write_adapter_files(from, tokenizer, run_.adapter, to);
    write_model_files(from, tokenizer, run_.model(), stored_dtype(), to);
  }
  // Of the model that is written in the end.
  DType stored_dtype() const {
    const bool narrow =
        t5::job_of(run_.request).seq2seq.format == WeightFormat::bf16 && !config().lora;
    return config().save_dtype.value_or(narrow ? DType::bf16 : DType::f32);
  }
  // Values are in the file that others read as well; the rest is state.
  template <class Tensor>
  std::vector<Tensor> in_files(std::vector<Tensor> all, bool values_only = false) const {
    std::size_t i = 0;
    for (const UpdatedTensor& t : trained()) {
      all[i].file = file_name();
      if (config().lora) all[i].name = t5::adapter_tensor_name(t.name);
      i += 1 + (values_only ? 0 : t.states.size());
    }
    return all;
  }
  void init_adapters(Runner& runner) const;
  // labels(batch): by how many a micro-batch's losses are divided.
  template <class Labels>
  void write_inputs(Runner& runner, const PairData& data, const t5::StepIo& io,
                    std::span<const std::uint32_t> samples, const Labels& labels) const;
  double eval_loss(Runner& runner, std::int64_t step) const;
  Rouge score_texts(Runner& runner) const;

  Seq2SeqRun run_;
  MemoryPolicy policy_;
  std::unique_ptr<t5::Seq2Seq> model_;
  FeedPosition at_;
  std::vector<std::uint32_t> order_, eval_order_;
  std::int64_t updates_ = 0;
  BestEvaluation best_;
};

std::optional<FoundCheckpoint> Seq2SeqTask::find_checkpoint(const ResumedRun& run) {
  const bool own_model = config().model.empty() && !config().lora;  // the checkpoint's
  if (config().resume->empty() && !own_model) return find_resumed(run);
  if (run.before) return std::nullopt;  // this one was asked for, no other
  FoundCheckpoint found = {run_.resume_from,
                           verify_checkpoint(run_.resume_from, Verify::sizes, run.names)};
  ResumedRun wanted = run;
  if (own_model) wanted.model_hash = found.state.model_hash;
  check_resumed(found, wanted);
  return found;
}

// As PEFT begins: A uniform within 1 / sqrt(K), B zero.
void Seq2SeqTask::init_adapters(Runner& runner) const {
  std::vector<float> values;
  for (const AdapterIo& a : model_->io().adapters) {
    const TensorView down = runner.view(a.a);
    const double bound = 1 / std::sqrt(static_cast<double>(down.shape[1]));
    values.resize(to_size(down.elements()));
    fill_uniform(random_source(config().seed, "lora_init", 0, a.name), 0, values.data(),
                 down.elements());
    for (float& x : values) x = static_cast<float>((2.0 * x - 1.0) * bound);
    runner.write(a.a, std::as_bytes(std::span(values)));
    values.assign(to_size(runner.view(a.b).elements()), 0);
    runner.write(a.b, std::as_bytes(std::span(values)));
  }
}

// The inputs of one run: micro-batch after micro-batch; what is left over does not count.
template <class Labels>
void Seq2SeqTask::write_inputs(Runner& runner, const PairData& data, const t5::StepIo& io,
                               std::span<const std::uint32_t> samples, const Labels& labels) const {
  const auto batch = to_size(io.shape.samples);
  for (std::size_t m = 0; m < io.micro_batches.size(); ++m) {
    const std::size_t first = std::min(samples.size(), m * batch);
    const t5::MicroBatchIo& to = io.micro_batches[m];
    const auto part = samples.subspan(first, std::min(batch, samples.size() - first));
    *runner.view(to.label_weight).as<float>() =
        part.empty() ? 0 : static_cast<float>(1.0 / static_cast<double>(labels(part)));
    data::read_batch(data.cache, part, {io.shape.source, io.shape.target}, run_.model().pad,
                     run_.model().decoder_start,
                     {.source = span_of<std::int32_t>(runner, to.source),
                      .source_lengths = span_of<std::int32_t>(runner, to.source_lengths),
                      .decoder_input = span_of<std::int32_t>(runner, to.decoder_input),
                      .labels = span_of<std::int32_t>(runner, to.labels)});
  }
}

void Seq2SeqTask::gradients(Runner& runner, std::int64_t, StepRecord& record) {
  const Seq2SeqConfig& c = config();
  const PairData& d = *run_.train;
  const auto step = samples();
  const auto micro_batches = (std::ssize(step) + c.batch_size - 1) / c.batch_size;
  const std::int64_t labels = data::label_count(d.cache, step);
  record.batches = micro_batches;
  if (model_->job().accumulates) step_.run(runner, "zero_gradients");
  double loss = 0;
  for (std::int64_t r = 0;; ++r) {
    const auto part = samples_of_run(step, run_, r);
    if (part.empty()) break;
    const t5::StepIo& io = model_->io().steps[kind_of(d, part)];
    const Stopwatch waits;
    write_inputs(runner, d, io, part, [&](std::span<const std::uint32_t> batch) {
      if (c.loss_mean == LossMean::tokens) return labels;
      return data::label_count(d.cache, batch) * micro_batches;
    });
    record.times.data += waits.seconds();
    step_.run(runner, io.program,
              {.step = record.step,
               .seed = c.seed,
               .first_sample = r * c.batch_size * run_.micro_batches_per_visit});
    add_lane_times(record.times, runner.lane_times());
    loss += loss_of(runner, io);
  }
  record.loss = loss;
  step_.run(runner, "grad_norm");
  record.grad_norm = *runner.view(model_->io().grad_norm).as<float>();
}

double Seq2SeqTask::eval_loss(Runner& runner, std::int64_t step) const {
  const PairData& d = *run_.eval;
  double sum = 0;
  std::int64_t labels = 0;
  const std::int64_t steps = data::steps_per_epoch(std::ssize(eval_order_), d.batches);
  for (std::int64_t s = 0; s < steps; ++s) {
    const auto batch = data::samples_of_step(eval_order_, d.batches, s);
    const t5::StepIo& io = model_->io().eval_steps[kind_of(d, batch)];
    write_inputs(runner, d, io, batch, [](auto) { return std::int64_t{1}; });
    runner.run(io.program, {.step = step, .seed = config().seed});
    sum += loss_of(runner, io);
    labels += data::label_count(d.cache, batch);
  }
  return sum / static_cast<double>(labels);
}

// Text by text: the vocabulary is there for as long as it takes.
Rouge Seq2SeqTask::score_texts(Runner& runner) const {
  const data::Tokenizer tokenizer = data::Tokenizer::open(run_.tokenizer);
  const infer::GenerateOptions options = run_.generation();
  MeanRouge mean;
  std::vector<std::int32_t> source, target;
  Progress progress("writing texts", std::ssize(eval_order_));
  for (const std::uint32_t s : eval_order_) {
    const data::PairLength n = run_.eval->cache.length(s);
    source.resize(to_size(n.source));
    target.resize(to_size(n.target));
    run_.eval->cache.read(s, source, target);
    const auto text = infer::write_text(*model_->decoder(), runner, source, options);
    mean.add(rouge(tokenizer.decode(target), tokenizer.decode(text)));
    progress.add();
  }
  return mean.mean();
}

void Seq2SeqTask::evaluate(Runner& runner, std::int64_t step, RunRecords& records) {
  const double loss = eval_loss(runner, step);
  double value = loss;
  std::string text = fmt::format("loss {:.5f}", loss);
  if (model_->decoder()) {
    const Rouge scores = score_texts(runner);
    Rouge::each(scores, [&](const char* name, double score) {
      records.score(step, "eval", name, score);
      text += fmt::format(", {} {:.4f}", name, score);
      if (name == name_of(config().best_metric)) value = score;
    });
  }
  records.eval(step, "eval", loss);
  log::info("step {}: evaluation {}", step, text);
  if (step > 0) best_.take(step, value);  // what is not trained is no result
}

void Seq2SeqTask::put_state(TrainerState& state) const {
  state.counts["updates"] = updates_;
  state.counts[kShared] = run_.micro_batches_per_visit;
  state.counts["loss_checks"] = best_.checks;
  state.counts["loss_worse"] = best_.worse;
  state.counts["best_step"] = best_.best_step;
  state.numbers["best_loss"] = best_.best;
  state.numbers[kRateNumber] = run_.schedule.learning_rate;
  state.texts[kTexts] = run_.train->cache.key();
}

void Seq2SeqTask::take_state(const TrainerState& state, bool) {
  updates_ = state.count("updates");
  best_.checks = state.count("loss_checks");
  best_.worse = state.count("loss_worse");
  best_.best_step = state.count("best_step", -1);
  best_.best = state.number("best_loss", best_.best);
}

void Seq2SeqTask::add_files(const std::string& run, const std::string& to,
                            const TrainerState& state) {
  const Seq2SeqConfig& c = config();
  write_files(run, to);
  TransformersState s = {.step = state.step,
                         .max_steps = run_.total_steps,
                         .steps_per_epoch = run_.steps_per_epoch,
                         .epochs = c.epochs,
                         .batch_size = c.batch_size,
                         .logging_steps = c.logging_steps,
                         .save_steps = c.save_steps > 0 ? c.save_steps : run_.steps_per_epoch,
                         .eval_steps = c.eval_steps > 0 ? c.eval_steps : run_.steps_per_epoch,
                         .run_log = run + "/" + std::string(kRunLogFile)};
  if (run_.eval && best_.best_step >= 0) {
    s.best_metric = best_.best;
    s.best_step = best_.best_step;
    const std::string folder = run + "/" + checkpoint_name(best_.best_step, transformers_names());
    if (c.load_best || std::filesystem::exists(folder)) s.best_checkpoint = folder;
  }
  write_text_file(to + "/" + kTransformersStateFile, transformers_state_json(s));
  malloc_trim(0);  // the history of all steps is in the file
}

void Seq2SeqTask::choose_final_model(Runner& runner, const std::string& run) {
  if (!config().load_best || best_.best_step < 0) return;
  const std::string folder = run + "/" + checkpoint_name(best_.best_step, transformers_names());
  while_doing(fmt::format("loading the best model, that of step {}", best_.best_step), [&] {
    verify_checkpoint(folder, Verify::sizes, transformers_names());
    load_checkpoint(folder, loaded_tensors(runner, false));
  });
  runner.run("after_restore");
  log::info("{}: {} {:.5f} was the best, its model is the one that is saved", folder,
            name_of(config().best_metric), best_.best);
}

std::vector<std::string> Seq2SeqTask::save(Runner& runner, const SaveTarget& target, std::int64_t) {
  const DType dtype = stored_dtype();
  std::vector<SavedTensor> tensors;
  for (const UpdatedTensor& t : trained()) {
    const Buffer value = value_to_save(t);
    tensors.push_back({.name = config().lora ? t5::adapter_tensor_name(t.name) : t.name,
                       .dtype = dtype,
                       .shape = runner.view(value).shape,
                       .source = converted_source(runner, value, dtype)});
  }
  if (config().lora) {
    write_tensors(target.folder + "/" + target.file_name, tensors);
  } else {
    write_model_weights(target.folder, tensors);
  }
  return {target.folder};
}

// 0 steps: never.
Cadence every(std::int64_t steps, bool each_epoch) {
  Cadence c;
  if (each_epoch) c.epochs = 1;
  if (!each_epoch && steps > 0) c.steps = steps;
  return c;
}

// What the loop reads of it.
TrainConfig loop_config(const Seq2SeqRun& run) {
  const Seq2SeqConfig& c = run.config;
  TrainConfig t;
  t.source = c.source;
  t.output_dir = c.output_dir;
  if (!run.resume_from.empty()) t.resume = run.resume_from;
  t.optimizer = c.optimizer;
  t.seed = c.seed;
  t.micro_batch.plain = c.batch_size;
  t.gradient_accumulation = c.accumulation;
  t.max_steps = c.max_steps;
  t.checkpoint = every(c.save_steps, c.save_steps < 0);
  t.evaluate = every(c.eval_steps, c.eval_steps == 0);
  t.evaluate_before_first_step = c.evaluate_first;
  t.keep_checkpoints = c.keep_checkpoints;
  t.on_nan = c.on_nan;
  t.steps_per_print = c.print_steps > 0 ? c.print_steps : c.logging_steps;
  t.logging_steps = c.logging_steps;
  t.memory_line_steps = c.memory_line_steps;
  t.webhook_minutes = c.webhook_minutes;
  return t;
}

}  // namespace

TrainOutcome train_seq2seq(Seq2SeqRun run, fit::PlannedRun planned, const TrainOptions& options) {
  RunSetup setup;
  setup.config = loop_config(run);
  setup.total_steps = run.total_steps;
  setup.schedule = run.schedule;
  setup.backend = run.request.backend;
  setup.model = run.checkpoints[0].path();
  setup.model_hash = model_hash(run.checkpoints);
  setup.device = planned.plan.peak_of(Tier::device);
  setup.host = planned.plan.peak_of(Tier::host);
  setup.steps = planned.steps;
  setup.info = run_info(run, planned, options.command);
  setup.in_output_dir = true;
  setup.config_hash = config_hash(run);
  setup.webhook = run.config.webhook;
  setup.optimizer_flag = "--optim";
  auto task = std::make_unique<Seq2SeqTask>(std::move(run), std::move(planned.policy));
  planned = {};  // its recording is the same as the one that follows, without kernels
  malloc_trim(0);
  return train(std::move(setup), std::move(task), options);
}

}  // namespace ballast::train
