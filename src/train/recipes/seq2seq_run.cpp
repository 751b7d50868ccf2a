#include "train/recipes/seq2seq_run.h"

#include <malloc.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "core/error.h"
#include "core/log.h"
#include "core/path_kind.h"
#include "core/progress.h"
#include "core/to_size.h"
#include "infer/model_folder.h"
#include "io/hub_cache.h"
#include "io/limits.h"
#include "memory/machine.h"
#include "memory/text_file.h"
#include "models/t5/recognise.h"
#include "models/t5/weights.h"
#include "train/checkpoint/checkpoint.h"
#include "train/checkpoint/checkpoint_manifest.h"
#include "train/checkpoint/checkpoint_search.h"
#include "train/run/prepared_run.h"
#include "train/run/vocabulary.h"

namespace ballast::train {
namespace {

namespace fs = std::filesystem;

constexpr const char* kTokenFolder = "token_cache";
// So many samples are walked through to find the shapes that occur; with more, all may.
constexpr std::int64_t kMaxWalked = 20'000'000;

// Of the job in its file; T5's own where there is none.
double dropout_of(const WeightFiles& checkpoint) {
  double dropout = 0.1;
  if (!checkpoint.config_path()) return dropout;
  const std::string& path = *checkpoint.config_path();
  const std::string text = read_text_file(path, limits::kConfigBytes, "a config.json");
  JsonReader json({.text = text, .path = path, .rule = "config.json"});
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
    if (!fs::exists(folder / kManifestFile, error)) {
      const bool note = c.dialect == Seq2SeqDialect::fine_tune;
      fail(ErrorCode::input,
           fmt::format("{} is no checkpoint of Ballast: it has no {}", folder.string(),
                       kManifestFile),
           {{fmt::format("--{} {}", note ? "pretrained-model" : "model_name_or_path",
                         folder.string()),
             "begins with its weights, without the optimizer's state"}});
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
         {{"--resume-from-checkpoint", "continues from the newest"},
          {"--overwrite-output-dir", "begins anew; its checkpoints are removed"},
          {"another output folder", "leaves it as it is"}});
  }
  return c.resume ? found : "";
}

// Folders that the run may go on from, the best first: a newer one that is broken is passed over.
std::vector<std::string> resumable_folders(const Seq2SeqRun& run) {
  const Seq2SeqConfig& c = run.config;
  if (run.resume_from.empty()) return {};
  if (!c.resume->empty()) return {run.resume_from};
  std::map<std::int64_t, std::string, std::greater<>> by_step;
  std::error_code error;
  for (fs::directory_iterator it(c.output_dir, error), end; !error && it != end;
       it.increment(error)) {
    const auto step = step_of_checkpoint(it->path().filename().string(), transformers_names());
    if (step) by_step[*step] = it->path().string();
  }
  std::vector<std::string> folders;
  for (const auto& [step, folder] : by_step) folders.push_back(folder);
  return folders;
}

// Checkpoints of earlier versions have 8-bit moments of the token table: such a run keeps them.
MomentBits embedding_moments(const Seq2SeqRun& run) {
  const std::string codes = std::string(t5::kEmbeddingName) + ".m.absmax";
  for (const std::string& folder : resumable_folders(run)) {
    const std::string path = folder + "/" + kStateFile;
    if (!is_file(path)) continue;
    try {
      const SafetensorsFile state = SafetensorsFile::open(path, DiskMode::buffered);
      return state.find(codes) != nullptr ? MomentBits::by_size : MomentBits::always_32;
    } catch (const Error&) {  // who loads it says what is wrong
    }
  }
  return MomentBits::always_32;
}

std::uint64_t bytes_of_texts(const std::string& file) {
  std::error_code error;
  const std::uintmax_t size = fs::file_size(file, error);
  if (error) {
    fail(ErrorCode::input, fmt::format("{}: {}", file, error.message()),
         {{"--train_file, --validation_file, --test_file", "name JSON Lines or CSV"}});
  }
  return size;
}

// The texts before there is a tokenizer: all of them as long as they may be.
data::TokenCache longest_texts(const std::string& file, const Seq2SeqConfig& c) {
  (void)bytes_of_texts(file);
  std::int64_t records = 0;
  data::RecordReader reader = data::RecordReader::open(file);
  for (data::RawRecord record; reader.next(record);) ++records;
  return data::TokenCache::assumed(std::max<std::int64_t>(1, records),
                                   {c.tokens.max_source, c.tokens.max_target});
}

data::TokenCache tokenise(const std::string& file, const data::Tokenizer& tokenizer,
                          const Seq2SeqConfig& c) {
  const std::uint64_t size = bytes_of_texts(file);
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
  if (samples * epochs > kMaxWalked) {
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

// A model that is known by its id or preset and not on this machine.
std::optional<t5::Published> absent_text_model(const std::string& named) {
  if (path_exists(infer::model_path(named))) return std::nullopt;
  return t5::find_published(named);
}

// The model's folder; without --pretrained-model the checkpoint's own, or its adapter's.
void find_seq2seq_model(Seq2SeqRun& run) {
  const Seq2SeqConfig& c = run.config;
  std::string model = c.model;
  const bool resumes_adapter = !run.resume_from.empty() && t5::is_adapter_folder(run.resume_from);
  if (!run.resume_from.empty() && c.lora.has_value() != resumes_adapter) {
    fail(ErrorCode::input,
         fmt::format("{} holds {}", run.resume_from, resumes_adapter ? "an adapter" : "a model"),
         {{resumes_adapter ? "--lora_rank N" : "the command without --lora_rank and the like",
           "continues with it"}});
  }
  if (model.empty() && resumes_adapter) {
    model = t5::read_adapter_config(run.resume_from).base_model;
    if (model.empty()) {
      fail(ErrorCode::usage, fmt::format("{} does not say what it adapts", run.resume_from),
           {{"--pretrained-model FOLDER", "the model that it began with"}});
    }
  }
  if (model.empty()) {
    run.model_folder = run.resume_from;
  } else if (auto published = absent_text_model(model)) {
    if (!c.plan_only) fail_not_downloaded(model, published->id);
    run.published = std::move(published);
    run.model_folder = model;
    run.notes.push_back(
        fmt::format("{} is not on this machine: planned from its published sizes, weights in {}",
                    model, name_of(run.published->stored)));
  } else {
    run.model_folder = infer::model_snapshot(model);
  }
  if (!c.lora) return;
  run.adapter.base_model = path_exists(model) ? fs::absolute(model).string() : model;
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

// A checkpoint that stands for the model has no name that tells a rate: it says its own.
double learning_rate_of(const Seq2SeqRun& run) {
  const Seq2SeqConfig& c = run.config;
  if (c.learning_rate) return *c.learning_rate;
  if (c.dialect == Seq2SeqDialect::transformers) return 5e-5;
  if (c.model.empty()) {
    const TrainerState state =
        verify_checkpoint(run.resume_from, Verify::sizes, transformers_names());
    const auto rate = state.numbers.find(kRateNumber);
    if (rate != state.numbers.end()) return rate->second;
  }
  return usual_rate(c.model, run.model().d_model);
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
  run.schedule.warmup_steps = c.warmup_steps.value_or(std::min(c.max_warmup, share));
  if (run.schedule.kind == ScheduleKind::constant && run.schedule.warmup_steps > 0) {
    run.notes.push_back(fmt::format(
        "the schedule constant has no warm-up, as in transformers: {} steps of it are ignored "
        "(--lr_scheduler_type constant_with_warmup has one)",
        run.schedule.warmup_steps));
  }
  run.schedule.learning_rate = learning_rate_of(run);
}

std::int64_t epochs_of(const Seq2SeqConfig& c, std::int64_t steps_per_epoch) {
  return c.max_steps ? (*c.max_steps + steps_per_epoch - 1) / steps_per_epoch : c.epochs;
}

void take_job(Seq2SeqRun& run, const RunTarget& target) {
  const Seq2SeqConfig& c = run.config;
  t5::Seq2SeqJob& job = t5::job_of(run.request).seq2seq;
  job.precision = precision_on(target.backend.device);
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
  if (is_8bit(c.optimizer.kind) && !c.lora) {
    job.embedding_moments = embedding_moments(run);
    if (job.embedding_moments == MomentBits::by_size) {
      run.notes.push_back(
          "the checkpoint has 8-bit moments of the token embeddings: the run keeps them (a new run "
          "has them in 32 bits)");
    }
  }
  job.max_grad_norm = c.max_grad_norm;
}

void take_machine(Seq2SeqRun& run, const RunTarget& target) {
  const MemoryConfig& m = run.config.memory;
  fit::Request& r = run.request;
  r.backend = target.backend;
  r.profile = target.profile;
  r.budget = resolve_budget(target, m);
  r.other_lines.push_back(index_line(run));
  if (m.policy != "auto") r.policy = find_policy(m.policy);
  if (m.checkpointing == Checkpointing::off) r.switches.checkpointing = fit::Choice::off;
  if (m.checkpointing == Checkpointing::recompute) r.switches.checkpointing = fit::Choice::on;
}

// The files of the model, and what they say.
void open_text_model(Seq2SeqRun& run) {
  const Seq2SeqConfig& c = run.config;
  run.checkpoints.push_back(WeightFiles::open(run.model_folder));
  const WeightFiles& checkpoint = run.checkpoints[0];
  if (!fs::is_directory(run.model_folder)) {
    run.model_folder = fs::absolute(run.model_folder).parent_path().string();
  }
  std::error_code not_there;
  if (!c.lora && fs::equivalent(run.model_folder, c.output_dir, not_there)) {
    fail(ErrorCode::usage,
         fmt::format("{}: the trained model would replace the one it begins with", c.output_dir),
         {{"another output folder", "keeps both"}});
  }
  const t5::TensorMap names(checkpoint);
  t5::Seq2SeqJob& job = t5::job_of(run.request).seq2seq;
  job.config = t5::model_config(checkpoint, names);
  if (job.config.decoder_layers == 0) {
    fail(ErrorCode::input, "{} holds an encoder without a decoder", checkpoint.path());
  }
  t5::job_of(run.request).weights = t5::weight_groups(job.config, checkpoint, names);
  job.dropout = c.dropout ? *c.dropout : dropout_of(checkpoint);
}

// The same of a model that is not here yet.
void plan_text_model(Seq2SeqRun& run) {
  t5::Seq2SeqJob& job = t5::job_of(run.request).seq2seq;
  job.config = run.published->config;
  t5::job_of(run.request).weights = t5::planned_groups(job.config, run.published->stored);
  job.dropout = run.config.dropout.value_or(0.1);
}

void read_texts(Seq2SeqRun& run) {
  const Seq2SeqConfig& c = run.config;
  run.tokenizer = c.tokenizer.empty() ? run.model_folder
                                      : resolve_model_path(c.tokenizer, HubUse::tokenizer).path;
  std::optional<Vocabulary> vocabulary;
  if (run.published && c.tokenizer.empty()) {
    run.notes.push_back(fmt::format(
        "there is no tokenizer yet: planned for texts of {} and {} tokens, the longest allowed",
        c.tokens.max_source, c.tokens.max_target));
  } else {
    vocabulary.emplace(Vocabulary::open(run.tokenizer));
    const data::Tokenizer& tokenizer = vocabulary->tokenizer;
    if (c.predict) {
      run.request.other_lines.push_back(vocabulary->line("evaluations read texts again"));
    }
    if (tokenizer.vocab_size() > run.model().vocabulary) {
      fail(ErrorCode::input, "{} has {} tokens, the model knows {}", tokenizer.path(),
           tokenizer.vocab_size(), run.model().vocabulary);
    }
  }
  const auto tokens = [&](const std::string& file) {
    return vocabulary ? tokenise(file, vocabulary->tokenizer, c) : longest_texts(file, c);
  };
  run.train.emplace(PairData{.cache = tokens(c.train_file),
                             .batches = {.batch = c.batch_size,
                                         .accumulation = c.accumulation,
                                         .group_by_length = c.group_by_length,
                                         .seed = c.seed,
                                         .limit = c.max_train_samples},
                             .shapes = {},
                             .runs = {}});
  if (!c.validation_file.empty()) {
    run.eval.emplace(PairData{.cache = tokens(c.validation_file),
                              .batches = {.batch = c.eval_batch_size,
                                          .shuffle = false,
                                          .seed = c.seed,
                                          .limit = c.max_eval_samples},
                              .shapes = {},
                              .runs = {}});
  }
  if (!c.test_file.empty()) run.test = tokens(c.test_file);
}

}  // namespace

void share_visits(Seq2SeqRun& run, std::int64_t micro_batches) {
  const Seq2SeqConfig& c = run.config;
  run.micro_batches_per_visit = micro_batches;
  find_shapes(*run.train, run, epochs_of(c, run.steps_per_epoch), true);
  t5::Seq2SeqJob& job = t5::job_of(run.request).seq2seq;
  job.batches.clear();
  for (const data::PairLength& s : run.train->shapes) {
    job.batches.push_back({.samples = c.batch_size,
                           .source = s.source,
                           .target = s.target,
                           .micro_batches = micro_batches});
  }
  t5::job_of(run.request).runs_per_step = run.runs_per_step();
  job.accumulates = run.runs_per_step() > 1;
  const data::PairLength longest = run.train->shapes.front();
  run.shapes = fmt::format("{} x {} samples of up to {} and {} tokens, {} shapes", c.accumulation,
                           c.batch_size, longest.source, longest.target, run.train->shapes.size());
}

std::span<const std::uint32_t> samples_of_run(std::span<const std::uint32_t> step,
                                              const Seq2SeqRun& run, std::int64_t r) {
  const auto size = to_size(run.config.batch_size * run.micro_batches_per_visit);
  const std::size_t first = std::min(step.size(), to_size(r) * size);
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
  if (run.published) {
    plan_text_model(run);
  } else {
    open_text_model(run);
  }
  for (const std::string& name :
       c.lora ? t5::adapter_targets(*c.lora) : std::vector<std::string>()) {
    if (name == "wi" && run.model().gated) {  // as modules are called
      run.adapter.targets.insert(run.adapter.targets.end(), {"wi_0", "wi_1"});
    } else {
      run.adapter.targets.push_back(name);
    }
  }
  read_texts(run);
  malloc_trim(0);  // the vocabulary is not needed any more
  take_steps(run);
  if (run.eval) find_shapes(*run.eval, run, 1, false);
  take_job(run, target);
  share_visits(run, std::max<std::int64_t>(1, c.micro_batches_per_visit));
  take_machine(run, target);
  run.title = fmt::format("{}, {}", model_name_of(run.model_folder), c.lora ? "LoRA" : "fine-tune");
  return run;
}

}  // namespace ballast::train
