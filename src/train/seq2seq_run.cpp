#include "train/seq2seq_run.h"

#include <malloc.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "core/error.h"
#include "core/log.h"
#include "core/progress.h"
#include "infer/model_folder.h"
#include "memory/machine.h"
#include "models/t5/recognise.h"
#include "models/t5/weights.h"
#include "train/checkpoint_search.h"
#include "train/prepared_run.h"
#include "train/vocabulary.h"

namespace ballast::train {
namespace {

namespace fs = std::filesystem;

constexpr const char* kTokenFolder = "token_cache";
// So many samples are walked through to find the shapes that occur; with more,
// every shape of the ladder may.
constexpr std::int64_t kMostWalked = 20'000'000;

// Of the job in its file; T5's own where there is none.
double dropout_of(const Checkpoint& checkpoint) {
  double dropout = 0.1;
  if (!checkpoint.config_path()) return dropout;
  const DiskFile file = DiskFile::open(*checkpoint.config_path(), DiskMode::buffered);
  std::string text(std::min<std::uint64_t>(file.size(), 1 << 20), '\0');
  file.read(0, std::as_writable_bytes(std::span(text)));
  JsonReader json({.text = text, .path = file.path(), .rule = "config.json"});
  json.open_object();
  for (std::string_view key; json.next_key(key);) {
    if (key == "dropout_rate") {
      dropout = json.number();
      if (!(dropout >= 0 && dropout < 1)) json.fail_value("expected a number from 0 to 1");
    } else {
      json.skip();
    }
  }
  return dropout;
}

// The folder that is gone on from; "": from the beginning.
std::string resumed_folder(const Seq2SeqConfig& c) {
  const CheckpointNames names = transformers_names();
  std::int64_t newest = -1;
  std::error_code error;
  for (fs::directory_iterator it(c.output_dir, error), end; !error && it != end;
       it.increment(error)) {
    newest =
        std::max(newest, step_of_checkpoint(it->path().filename().string(), names).value_or(-1));
  }
  if (c.resume && !c.resume->empty()) {
    fs::path folder(*c.resume);
    if (!folder.has_filename()) folder = folder.parent_path();
    if (!fs::is_directory(folder, error)) {
      fail(ErrorCode::input, fmt::format("{}: no such checkpoint to resume", folder.string()),
           {{"--resume-from-checkpoint without a value", "takes the newest of the output folder"}});
    }
    return folder.string();
  }
  const std::string found = newest < 0 ? "" : c.output_dir + "/" + checkpoint_name(newest, names);
  if (c.resume && found.empty() && c.model.empty()) {
    fail(ErrorCode::input, fmt::format("{}: no checkpoint to resume", c.output_dir),
         {{"start without --resume-from-checkpoint", "a new run begins"}});
  }
  if (c.resume && found.empty()) {
    log::warn("{} has no checkpoint yet: the run starts from its beginning", c.output_dir);
  }
  if (!c.resume && !found.empty() && !c.overwrite && !c.plan_only) {
    fail(ErrorCode::usage, fmt::format("{} holds the checkpoints of a run", c.output_dir),
         {{"--resume-from-checkpoint", "goes on from the newest"},
          {"--overwrite-output-dir", "begins anew; its checkpoints are removed"},
          {"another output folder", "leaves it as it is"}});
  }
  return c.resume ? found : "";
}

data::TokenCache tokenise(const std::string& file, const data::Tokenizer& tokenizer,
                          const Seq2SeqConfig& c) {
  std::error_code error;
  const std::uintmax_t size = fs::file_size(file, error);
  if (error) {
    fail(ErrorCode::input, fmt::format("{}: {}", file, error.message()),
         {{"--train_file, --validation_file, --test_file", "name JSON Lines or CSV"}});
  }
  Progress progress("tokenising " + fs::path(file).filename().string(),
                    static_cast<std::int64_t>(size), Progress::Unit::bytes);
  const int threads = c.workers > 0 ? static_cast<int>(std::min<std::int64_t>(c.workers, 64))
                                    : usable_cpus(read_machine());
  data::TokenCache cache = data::make_token_cache(
      file, tokenizer, c.tokens, c.output_dir + "/" + kTokenFolder, threads,
      [&](std::uint64_t bytes) { progress.add(static_cast<std::int64_t>(bytes)); });
  const data::PairCounts& n = cache.counts();
  log::info("{}: {} of {} records, {} of low quality and {} empty left out, {} cut", file,
            cache.samples(), n.records, n.low_quality, n.empty, n.cut);
  return cache;
}

// Every shape that a run of these batches has in these epochs.
void find_shapes(PairData& d, const Seq2SeqRun& run, std::int64_t epochs, bool training) {
  const Seq2SeqConfig& c = run.config;
  d.shapes.clear();
  d.runs.clear();
  const auto ladder = data::shape_ladder(d.cache.longest(),
                                         {.multiple = c.pad_multiple, .to_longest = c.pad_to_max});
  std::map<std::size_t, std::int64_t, std::greater<>> used;  // the largest first
  const std::int64_t samples = data::sample_count(d.cache, d.batches);
  if (samples * epochs > kMostWalked) {
    for (std::size_t i = 0; i < ladder.size(); ++i) used[i] = 0;
  } else {
    for (std::int64_t epoch = 1; epoch <= epochs; ++epoch) {
      const std::vector<std::uint32_t> order = data::epoch_order(d.cache, d.batches, epoch);
      for (std::int64_t s = 0; s < data::steps_per_epoch(samples, d.batches); ++s) {
        const auto step = data::samples_of_step(order, d.batches, s);
        for (std::int64_t r = 0;; ++r) {
          const auto part =
              training ? samples_of_run(step, run, r) : (r == 0 ? step : step.subspan(0, 0));
          if (part.empty()) break;
          ++used[data::shape_for(ladder, data::needed_shape(d.cache, part))];
        }
      }
    }
  }
  for (const auto& [shape, runs] : used) {
    d.shapes.push_back(ladder[shape]);
    d.runs.push_back(runs);
  }
}

// The model's folder; without --pretrained-model the checkpoint's own, or what its adapter belongs
// to.
void find_seq2seq_model(Seq2SeqRun& run) {
  const Seq2SeqConfig& c = run.config;
  std::string model = c.model;
  const bool resumes_adapter = !run.resume_from.empty() && t5::is_adapter_folder(run.resume_from);
  if (!run.resume_from.empty() && c.lora.has_value() != resumes_adapter) {
    fail(ErrorCode::input,
         fmt::format("{} holds {}", run.resume_from, resumes_adapter ? "an adapter" : "a model"),
         {{resumes_adapter ? "--lora_rank N" : "the command without --lora_rank and the like",
           "goes on with it"}});
  }
  if (model.empty() && resumes_adapter) {
    model = t5::read_adapter_config(run.resume_from).base_model;
    if (model.empty()) {
      fail(ErrorCode::usage, fmt::format("{} does not say what it adapts", run.resume_from),
           {{"--pretrained-model FOLDER", "the model that it began with"}});
    }
  }
  run.model_folder = model.empty() ? run.resume_from : infer::model_snapshot(model);
  if (!c.lora) return;
  std::error_code error;
  run.adapter.base_model = fs::exists(model, error) ? fs::absolute(model).string() : model;
  run.adapter.rank = c.lora->rank;
  run.adapter.alpha = c.lora->alpha;
  run.adapter.dropout = c.lora->dropout;
}

ProcessLine index_line(const Seq2SeqRun& run) {
  Bytes bytes;
  for (const auto* d : {&run.train, &run.eval}) {
    if (!*d) continue;
    // Lengths and places of all samples; the order of an epoch, and of the next
    // while it is made.
    bytes += (*d)->cache.memory() +
             Bytes{static_cast<std::uint64_t>((*d)->cache.samples()) * 2 * sizeof(std::uint32_t)};
  }
  return {.name = "index of samples", .bytes = bytes, .reason = "where each begins, their order"};
}

void take_steps(Seq2SeqRun& run) {
  const Seq2SeqConfig& c = run.config;
  const PairData& d = *run.train;
  run.steps_per_epoch = data::steps_per_epoch(data::sample_count(d.cache, d.batches), d.batches);
  run.total_steps = run.steps_per_epoch * c.epochs;
  if (c.max_steps) run.total_steps = *c.max_steps;  // as many epochs as it takes
  const auto share =
      static_cast<std::int64_t>(c.warmup_share * static_cast<double>(run.total_steps));
  run.schedule.kind = c.schedule;
  run.schedule.style = ScheduleStyle::transformers;
  run.schedule.total_steps = run.total_steps;
  run.schedule.warmup_steps = c.warmup_steps.value_or(std::min(c.most_warmup, share));
  if (run.schedule.kind == ScheduleKind::constant && run.schedule.warmup_steps > 0) {
    run.schedule.kind = ScheduleKind::constant_with_warmup;
  }
  run.schedule.learning_rate = c.learning_rate                          ? *c.learning_rate
                               : c.dialect == Seq2SeqDialect::fine_tune ? rate_by_name(c.model)
                                                                        : 5e-5;
}

std::int64_t epochs_of(const Seq2SeqConfig& c, std::int64_t steps_per_epoch) {
  return c.max_steps ? (*c.max_steps + steps_per_epoch - 1) / steps_per_epoch : c.epochs;
}

void take_job(Seq2SeqRun& run, const RunTarget& target) {
  const Seq2SeqConfig& c = run.config;
  t5::Seq2SeqJob& job = run.request.job;
  job.precision = t5::precision_on(target.backend.device);
  job.format = c.weights                               ? *c.weights
               : target.backend.device == Device::cuda ? WeightFormat::bf16
                                                       : WeightFormat::f32;
  job.trains = true;
  if (run.eval) {
    for (const data::PairLength& s : run.eval->shapes) {
      job.eval_batches.push_back(
          {.samples = c.eval_batch_size, .source = s.source, .target = s.target});
    }
  }
  job.gradient = c.gradients;
  job.record_update = true;
  job.lora = c.lora;
  if (run.eval && c.predict) {
    const infer::GenerateOptions o = run.generation();
    job.writes = t5::TextWriting{.beams = o.beams, .positions = o.max_new_tokens};
  }
  job.optimizer = c.optimizer;
  job.max_grad_norm = c.max_grad_norm;
}

void take_machine(Seq2SeqRun& run, const RunTarget& target) {
  const MemoryConfig& m = run.config.memory;
  t5::FitRequest& r = run.request;
  r.backend = target.backend;
  r.profile = target.profile;
  r.budget = budget_of(m, target.profile);
  r.other_lines.push_back(index_line(run));
  if (m.policy != "auto") r.policy = find_policy(m.policy);
  if (m.checkpointing == Checkpointing::off) r.checkpointing = t5::Choice::off;
  if (m.checkpointing == Checkpointing::recompute) r.checkpointing = t5::Choice::on;
}

}  // namespace

void share_visits(Seq2SeqRun& run, std::int64_t micro_batches) {
  const Seq2SeqConfig& c = run.config;
  run.micro_batches_per_visit = micro_batches;
  find_shapes(*run.train, run, epochs_of(c, run.steps_per_epoch), true);
  t5::Seq2SeqJob& job = run.request.job;
  job.batches.clear();
  for (const data::PairLength& s : run.train->shapes) {
    job.batches.push_back({.samples = c.batch_size,
                           .source = s.source,
                           .target = s.target,
                           .micro_batches = micro_batches});
  }
  job.accumulates = run.runs_per_step() > 1;
  const data::PairLength longest = run.train->shapes.front();
  run.shapes = fmt::format("{} x {} samples of up to {} and {} tokens, {} shapes", c.accumulation,
                           c.batch_size, longest.source, longest.target, run.train->shapes.size());
}

std::span<const std::uint32_t> samples_of_run(std::span<const std::uint32_t> step,
                                              const Seq2SeqRun& run, std::int64_t r) {
  const auto size = static_cast<std::size_t>(run.config.batch_size * run.micro_batches_per_visit);
  const std::size_t first = std::min(step.size(), static_cast<std::size_t>(r) * size);
  return step.subspan(first, std::min(size, step.size() - first));
}

infer::GenerateOptions Seq2SeqRun::generation() const {
  infer::GenerateOptions o;
  o.beams = static_cast<int>(config.beams);
  o.max_new_tokens =
      config.generation_length > 0 ? config.generation_length : config.tokens.max_target;
  return o;
}

Seq2SeqRun prepare_seq2seq(Seq2SeqConfig config, const RunTarget& target) {
  Seq2SeqRun run;
  run.config = std::move(config);
  const Seq2SeqConfig& c = run.config;
  run.notes = c.notes;
  run.resume_from = resumed_folder(c);
  find_seq2seq_model(run);
  run.checkpoints.push_back(Checkpoint::open(run.model_folder));
  const Checkpoint& checkpoint = run.checkpoints[0];
  if (!fs::is_directory(run.model_folder)) {
    run.model_folder = fs::absolute(run.model_folder).parent_path().string();
  }
  const t5::TensorMap names(checkpoint);
  t5::Seq2SeqJob& job = run.request.job;
  job.config = t5::model_config(checkpoint, names);
  if (job.config.decoder_layers == 0) {
    fail(ErrorCode::input, fmt::format("{} holds an encoder without a decoder", checkpoint.path()));
  }
  run.request.groups = t5::weight_groups(job.config, checkpoint, names);
  job.dropout = c.dropout ? *c.dropout : dropout_of(checkpoint);
  for (const std::string& name : c.lora ? c.lora->targets : std::vector<std::string>()) {
    if (name == "wi" && job.config.gated) {  // as modules are called
      run.adapter.targets.insert(run.adapter.targets.end(), {"wi_0", "wi_1"});
    } else {
      run.adapter.targets.push_back(name);
    }
  }
  run.tokenizer = c.tokenizer.empty() ? run.model_folder : c.tokenizer;
  {
    const Vocabulary vocabulary = Vocabulary::open(run.tokenizer);
    const data::Tokenizer& tokenizer = vocabulary.tokenizer;
    if (c.predict) {
      run.request.other_lines.push_back(vocabulary.line("evaluations read texts again"));
    }
    if (tokenizer.vocab_size() > job.config.vocabulary) {
      fail(ErrorCode::input, fmt::format("{} has {} tokens, the model knows {}", tokenizer.path(),
                                         tokenizer.vocab_size(), job.config.vocabulary));
    }
    run.train.emplace(PairData{.cache = tokenise(c.train_file, tokenizer, c),
                               .batches = {.batch = c.batch_size,
                                           .accumulation = c.accumulation,
                                           .group_by_length = c.group_by_length,
                                           .seed = c.seed,
                                           .limit = c.max_train_samples},
                               .shapes = {},
                               .runs = {}});
    if (!c.validation_file.empty()) {
      run.eval.emplace(PairData{.cache = tokenise(c.validation_file, tokenizer, c),
                                .batches = {.batch = c.eval_batch_size,
                                            .shuffle = false,
                                            .seed = c.seed,
                                            .limit = c.max_eval_samples},
                                .shapes = {},
                                .runs = {}});
    }
    if (!c.test_file.empty()) run.test = tokenise(c.test_file, tokenizer, c);
  }
  malloc_trim(0);  // the vocabulary is not needed any more
  take_steps(run);
  if (run.eval) find_shapes(*run.eval, run, 1, false);
  take_job(run, target);
  share_visits(run, std::max<std::int64_t>(1, c.micro_batches_per_visit));
  take_machine(run, target);
  run.title = fmt::format("{}, {}", fs::path(run.model_folder).filename().string(),
                          c.lora ? "LoRA" : "fine-tune");
  return run;
}

double seconds_per_step(const Seq2SeqRun& run, const t5::PlannedRun& planned) {
  const double update = planned.seconds_of_step(0, 0);
  double sum = 0, runs = 0;
  for (std::size_t k = 0; k < run.train->shapes.size(); ++k) {
    // Of too many texts nobody knows which shapes occur how often: all alike.
    const double here = std::max<double>(1, static_cast<double>(run.train->runs[k]));
    sum += here * (planned.seconds_of_step(k) - update);
    runs += here;
  }
  return update + static_cast<double>(run.runs_per_step()) * sum / runs;
}

std::variant<t5::PlannedRun, Refusal> plan_seq2seq(Seq2SeqRun& run) {
  auto best = t5::fit(run.request);
  const auto* alone = std::get_if<t5::PlannedRun>(&best);
  if (run.config.micro_batches_per_visit > 0 || !alone || alone->policy.slots == 0) return best;
  const std::int64_t accumulation = run.config.accumulation;
  double seconds = seconds_per_step(run, *alone);
  std::int64_t shares = 1;
  // 2, 4, ...: of 16 four, not all, where activations of more would push blocks off the device.
  for (std::int64_t n = 2; n < 2 * accumulation; n *= 2) {
    share_visits(run, std::min(n, accumulation));
    auto more = t5::fit(run.request);
    const auto* planned = std::get_if<t5::PlannedRun>(&more);
    if (!planned || seconds_per_step(run, *planned) >= seconds) break;
    seconds = seconds_per_step(run, *planned);
    shares = run.micro_batches_per_visit;
    best = std::move(more);
  }
  share_visits(run, shares);
  if (shares > 1) {
    run.notes.push_back(
        fmt::format("{} micro-batches share a visit of the streamed blocks, padded alike "
                    "(--micro_batches_per_visit 1: none do)",
                    shares));
  }
  return best;
}

PlanTitle title_of(const Seq2SeqRun& run) {
  const t5::FitRequest& r = run.request;
  return {.model = r.job.config.name,
          .mode = r.job.lora ? "LoRA" : "fine-tune",
          .shape = run.shapes,
          .weights =
              fmt::format("{} weights, {}{}", name_of(r.job.format), name_of(r.job.optimizer.kind),
                          r.job.lora ? fmt::format(", adapters of rank {}", r.job.lora->rank) : ""),
          .machine = fmt::format("{}{}", r.profile.description,
                                 r.profile.estimate ? " (rates are estimates)" : ""),
          .budget = r.budget,
          .shared_ram = r.profile.device == Device::cpu};
}

PlanView view_of(const Seq2SeqRun& run, const t5::PlannedRun& planned) {
  PlanView view = {.plan = planned.plan,
                   .times = planned.times,
                   .lines = planned.lines,
                   .policy = planned.policy.name,
                   .policy_text = t5::describe(run.model(), planned.policy)};
  const std::int64_t blocks = run.model().layers + run.model().decoder_layers;
  view.streamed_blocks = planned.policy.slots == 0
                             ? 0
                             : std::max<std::int64_t>(0, blocks - planned.policy.resident_groups);
  view.step_seconds = {seconds_per_step(run, planned)};
  view.steps_of_kind = {run.steps_per_epoch};
  view.total_steps = run.total_steps;
  view.notes = run.notes;
  return view;
}

std::vector<t5::Change> possible_changes(const Seq2SeqRun& run, const Refusal& refusal) {
  const Seq2SeqConfig& c = run.config;
  std::vector<t5::Change> all;
  for (const Shortage& s : refusal.shortages) {
    const std::uint64_t megabytes = s.needed.count / 1'000'000 + 1;
    const bool device = s.tier == Tier::device;
    all.push_back({fmt::format("--{} {}MB", device ? "gpu" : "ram", megabytes),
                   [device, megabytes](t5::FitRequest& r) {
                     (device ? r.budget.gpu : r.budget.host) = Bytes{megabytes * 1'000'000};
                   }});
  }
  for (const std::int64_t batch : {c.batch_size / 2, std::int64_t{1}}) {
    if (batch < 1 || batch >= c.batch_size) continue;
    const std::int64_t steps = (c.accumulation * c.batch_size + batch - 1) / batch;
    all.push_back({fmt::format("--batch-size {} --gradient-accumulation-steps {}", batch, steps),
                   [batch](t5::FitRequest& r) {
                     for (t5::BatchShape& b : r.job.batches) b.samples = batch;
                     r.job.accumulates = true;
                   }});
  }
  if (!c.lora) {  // what is left of optimizer, gradients and masters is that of adapters
    all.push_back({fmt::format("--lora_rank {}", t5::LoraOptions().rank), [](t5::FitRequest& r) {
                     r.job.lora.emplace();
                     r.job.optimizer.rounding = UpdateRounding::nearest;
                   }});
  } else if (c.lora->rank > 4) {
    const std::int64_t rank = c.lora->rank / 2;
    all.push_back({fmt::format("--lora_rank {}", rank),
                   [rank](t5::FitRequest& r) { r.job.lora->rank = rank; }});
  }
  const auto optimizer = [&](const char* text, OptimizerKind kind) {
    if (c.optimizer.kind == kind) return;
    all.push_back({text, [kind](t5::FitRequest& r) { r.job.optimizer.kind = kind; }});
  };
  optimizer("--optim adamw_bnb_8bit", OptimizerKind::adamw8bit);
  optimizer("--optim adafactor", OptimizerKind::adafactor);
  if (c.lora) {
    if (run.request.job.format != WeightFormat::bf16) {
      all.push_back(
          {"--weights bf16", [](t5::FitRequest& r) { r.job.format = WeightFormat::bf16; }});
    }
  } else if (run.request.job.format != WeightFormat::bf16 ||
             c.optimizer.rounding == UpdateRounding::nearest) {
    all.push_back({"--weights bf16 --rounding stochastic", [](t5::FitRequest& r) {
                     r.job.format = WeightFormat::bf16;
                     r.job.optimizer.rounding = UpdateRounding::stochastic;
                   }});
  }
  if (c.gradients == DType::f32 && !c.lora) {
    all.push_back(
        {"--gradient_dtype bf16", [](t5::FitRequest& r) { r.job.gradient = DType::bf16; }});
  }
  const auto shorter = [](std::int64_t source, std::int64_t target) {
    return [source, target](t5::FitRequest& r) {
      for (auto* batches : {&r.job.batches, &r.job.eval_batches}) {
        for (t5::BatchShape& b : *batches) {
          b.source = std::min(b.source, source), b.target = std::min(b.target, target);
        }
      }
    };
  };
  const data::PairLength longest = run.train->shapes.front();
  const std::int64_t source = std::max<std::int64_t>(1, longest.source / 2),
                     target = std::max<std::int64_t>(1, longest.target / 2);
  all.push_back({fmt::format("--max_source_length {} --max_target_length {}", source, target),
                 shorter(source, target)});
  if (run.request.policy) {
    all.push_back({"--policy auto", [](t5::FitRequest& r) { r.policy.reset(); }});
  }
  return all;
}

}  // namespace ballast::train
