#include "train/run/prepared_run.h"

#include <algorithm>
#include <regex>

#include "core/error.h"
#include "core/to_size.h"
#include "data/prefetcher.h"
#include "dist/host_ranks.h"
#include "models/wan/dit_pass.h"
#include "models/wan/lora_read.h"
#include "models/wan/recognise.h"
#include "models/wan/weights.h"
#include "train/run/base_merge.h"
#include "train/run/config_hash.h"
#include "train/run/distilled_model.h"
#include "train/run/model_choice.h"
#include "train/run/parallel_resume.h"
#include "train/run/prepared_data.h"
#include "train/run/published_model.h"

namespace ballast::train {

namespace {

// Memory of the loop itself: logs, the writer's pieces while saving, and at the end the report,
// which takes 2 MB from the longest list of steps it is made of (kMaxSteps).
constexpr Bytes kLoopBytes = 3_MiB;

wan::Config open_model(PreparedRun& run, const ModelChoice& choice) {
  std::vector<std::string> paths = {choice.transformer};
  if (choice.experts == Experts::both) paths.push_back(choice.high_noise_transformer);
  std::optional<wan::Config> model;
  for (const std::string& path : paths) {
    const WeightFiles& file = run.checkpoints.emplace_back(WeightFiles::open(path));
    const wan::TensorMap names(file);
    const wan::Config config = recognised_config(file, names, path);
    require_task(run.config.model, config, path);
    if (model && (model->dim != config.dim || model->in_dim != config.in_dim)) {
      fail(ErrorCode::input, "{} is {}, {} is {}: experts have one shape", paths[0], model->name,
           path, config.name);
    }
    model = config;
    if (run.config.method == Method::full && !run.config.student) {
      run.layout = layout_of(path, names.dialect(), choice.config_json);
    }
    wan::job_of(run.request).experts.push_back(weight_groups(*model, file, names));
  }
  return *model;
}

// Opens the transformer of a run, or both experts, and notes why these. A plan does without the
// files of a model that is known by its id or preset.
wan::Config choose_model(PreparedRun& run, Purpose purpose) {
  const TrainConfig& c = run.config;
  if (purpose == Purpose::train) require_downloaded(c.model);
  if (const auto absent = absent_model(c.model)) return plan_published(run, *absent);
  const ModelDecision decision = resolve_model(c);
  ModelChoice choice;
  if (const auto* ambiguous = std::get_if<AmbiguousModel>(&decision)) {
    if (purpose == Purpose::train) choice = require_model(c);  // fails with both lines
    choice = ambiguous->low;
    run.notes.push_back(fmt::format(
        "the folder holds two experts of one shape; to train, write one of\n  {}\n  {}\n  "
        "experts = 'both'",
        ambiguous->low_line, ambiguous->high_line));
  } else {
    choice = std::get<ModelChoice>(decision);
  }
  if (!choice.explanation.empty()) run.notes.push_back(choice.explanation);
  run.boundary = c.model.boundary > 0 ? c.model.boundary : choice.boundary;
  return open_model(run, choice);
}

WeightFormat format_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return WeightFormat::f32;
    case DType::f16:
      return WeightFormat::f16;
    case DType::f8_e4m3:
      return WeightFormat::f8_e4m3;
    case DType::f8_e5m2:
      return WeightFormat::f8_e5m2;
    default:
      return WeightFormat::bf16;
  }
}

WeightFormat frozen_format(const ModelConfig& m) {
  const WeightFormat format = format_of(m.transformer_dtype.value_or(m.dtype));
  return m.transformer_scales && format == WeightFormat::f8_e4m3 ? WeightFormat::f8_e4m3_rows
                                                                 : format;
}

// LoRAs that the run begins with: a plan says what is wrong with them, before anything is merged.
void check_loras(PreparedRun& run) {
  const TrainConfig& c = run.config;
  for (const auto& [path, strength] : c.model.base_loras) {
    while_doing("opening a LoRA that is merged first",
                [&] { (void)wan::LoraReader::open(path, &run.model()); });
  }
  AdapterConfig& a = run.config.adapter;
  if (c.method != Method::lora || a.init_from.empty() || (c.resume && a.rank > 0)) return;
  const wan::LoraReader lora = while_doing("opening the LoRA that training begins with", [&] {
    return wan::LoraReader::open(a.init_from, &run.model());
  });
  for (const wan::LoraModule& m : lora.modules()) {
    if (m.rank == 0) continue;
    if (a.rank == 0) {  // --dim_from_weights
      a.rank = m.rank;
      a.alpha = m.scale() * static_cast<double>(m.rank);
    }
    if (m.rank != a.rank) {
      fail(ErrorCode::input,
           fmt::format("{}: {} has rank {}, this run trains rank {}", lora.path(),
                       printable(m.name), m.rank, a.rank),
           {{fmt::format("a rank of {}", m.rank), "every module of a run has the same"}});
    }
  }
  if (a.rank == 0) fail(ErrorCode::input, "{} has no factors", lora.path());
}

// Where it has no effect.
void note_dtype(PreparedRun& run) {
  const bool gpu = run.request.backend.device == Device::cuda;
  const DType dtype = run.config.model.dtype;
  if (!gpu || dtype == DType::bf16) return;
  run.notes.push_back(fmt::format(
      "dtype {}: a GPU computes in bfloat16 here, with sums, norms and the loss in float32",
      name_of(dtype)));
}

void add_previews(PreparedRun& run) {
  if (!run.config.preview.wanted()) return;
  if (run.checkpoints.empty()) {
    run.notes.push_back("previews are not part of this plan: VAE and text encoder are not here");
    return;
  }
  wan::LatentSize largest;
  for (const wan::Batch& b : wan::job_of(run.request).dit.batches) {
    for (const wan::LatentSize& z : b.latents) {
      if (z.tokens() > largest.tokens()) largest = z;
    }
  }
  run.previews =
      std::make_unique<Previews>(PreviewSetting{.config = run.config,
                                                .model = run.model(),
                                                .experts = static_cast<int>(run.checkpoints.size()),
                                                .boundary = run.boundary,
                                                .largest = largest,
                                                .backend = run.request.backend,
                                                .profile = run.request.profile,
                                                .budget = run.request.budget});
  run.previews->add_to(run.request);
}

// Modules of the blocks that get no adapter.
std::vector<std::string> excluded_modules(const AdapterConfig& a, const wan::Config& model) {
  const auto matches = [](const std::string& module, const std::vector<std::string>& patterns,
                          bool regex) {
    return std::ranges::any_of(patterns, [&](const std::string& p) {
      if (regex) return std::regex_match(module, std::regex(p));
      return module == p || module.ends_with("." + p);
    });
  };
  std::vector<std::string> excluded;
  for (std::int64_t block = 0; block < model.layers; ++block) {
    for (const wan::AdapterTarget& t : wan::adapter_targets(model)) {
      const std::string module = fmt::format("blocks.{}.{}", block, t.name);
      if (matches(module, a.exclude, a.exclude_is_regex) && !matches(module, a.include, true)) {
        excluded.push_back(module);
      }
    }
  }
  const auto all = to_size(model.layers) * wan::adapter_targets(model).size();
  if (excluded.size() == all) {
    fail(ErrorCode::input, "the adapter's exclude patterns leave no module to train");
  }
  return excluded;
}

ops::LossFunction loss_of(const TrainConfig& c) {
  switch (c.loss) {
    case Loss::huber:
      return {.kind = ops::LossKind::huber, .delta = c.loss_delta};
    case Loss::smooth_l1:
      return {.kind = ops::LossKind::smooth_l1, .delta = c.loss_delta};
    case Loss::mse:
      break;
  }
  return {};
}

std::string shapes_text(const PreparedRun& run) {
  std::string text;
  const auto& batches = wan::job_of(run.request).dit.batches;
  for (std::size_t i = 0; i < std::min<std::size_t>(batches.size(), 3); ++i) {
    const wan::LatentSize& z = batches[i].latents[0];
    text += fmt::format("{}{} x {} x {} x {}", i ? ", " : "", batches[i].latents.size(), z.frames,
                        z.height, z.width);
  }
  if (batches.size() > 3) text += fmt::format(" and {} more", batches.size() - 3);
  return text + fmt::format(" latents, {} tokens", batches[0].latents[0].tokens());
}

void open_run_model(PreparedRun& run, const RunTarget& target, Purpose purpose) {
  const TrainConfig& c = run.config;
  fit::Request& r = run.request;
  wan::job_of(r).dit.config = choose_model(run, purpose);
  r.profile = target.profile;
  r.backend = target.backend;
  if (c.student) {
    take_student(run, purpose);
    wan::job_of(r).teacher->format = frozen_format(c.model);
  }
  check_loras(run);
  note_dtype(run);
  RunTarget shared = target;
  shared.ranks = static_cast<int>(c.parallel.ranks);
  r.budget = resolve_budget(shared, c.memory);
}

LoraOptions lora_of(const AdapterConfig& a) {
  return {.rank = a.rank,
          .alpha = static_cast<float>(a.alpha > 0 ? a.alpha : static_cast<double>(a.rank)),
          .dropout = a.dropout,
          .hidden_dropout = a.hidden_dropout,
          .rank_dropout = a.rank_dropout,
          .module_dropout = a.module_dropout,
          .dtype = a.dtype,
          .up_rate = a.up_rate_ratio,
          .max_norm = a.max_norm};
}

void check_optimizer(const OptimizerOptions& optimizer, const LoraOptions& lora) {
  if (lora.up_rate != 1 && !has_rate(optimizer.kind)) {
    fail(ErrorCode::input,
         "loraplus_lr_ratio needs an optimizer of the Adam family, {} "
         "has one learning rate for all",
         name_of(optimizer.kind));
  }
  if (lora.max_norm > 0 && optimizer.ema_decay) {
    fail(ErrorCode::input,
         "scale_weight_norms limits the norms of what is trained; with ema_decay an average is "
         "saved, whose norms have no limit",
         {{"leave out ema_decay", "what is saved keeps to the limit"},
          {"leave out scale_weight_norms", "the average is saved, without a limit"}});
  }
}

// Ranks of one host are a group of the sums as well.
DataParallel parallel_of(const PreparedRun& run) {
  const ParallelConfig& p = run.config.parallel;
  const std::int64_t columns = p.column_count();
  if (columns == 1 && p.ranks == 1) return {};
  if (p.ranks > columns) {
    fail(ErrorCode::usage,
         fmt::format("{} ranks for {} column{}: each rank takes whole columns", p.ranks, columns,
                     columns == 1 ? "" : "s"),
         {{fmt::format("--columns {}", p.ranks), "sums of another shape: rounding differs"},
          {fmt::format("--ranks {}", columns), "the most that this shape can use"}});
  }
  std::int64_t samples = 0;
  for (const wan::Batch& b : wan::job_of(run.request).dit.batches) {
    samples = std::max(samples, std::ssize(b.latents));
  }
  if (samples < columns) {
    fail(ErrorCode::usage,
         fmt::format("a step has {} sample{} for {} columns: a column would never have one",
                     samples, samples == 1 ? "" : "s", columns),
         {{fmt::format("--global_batch {}", columns), "a sample in each column"},
          {fmt::format("--columns {}", samples), "as many as there are samples"}});
  }
  return {.columns = {.columns = columns, .group = columns},
          .ranks = static_cast<int>(p.ranks),
          .rank = p.rank,
          .one_host = true};
}

// What is recorded, as the configuration wants it.
void describe_job(PreparedRun& run, const ComingData* coming) {
  const TrainConfig& c = run.config;
  wan::DitJob& job = wan::job_of(run.request).dit;
  job.mode = c.method == Method::lora ? wan::Mode::lora : wan::Mode::full;
  job.precision = precision_on(run.request.backend.device);
  job.format = c.method == Method::full ? format_of(c.model.dtype) : frozen_format(c.model);
  if (c.memory.fp8_matmul) use_fp8_products(job, run.request.backend);
  job.noising = c.dmd2 || c.student ? wan::Noising::prepared : wan::Noising::recorded;
  if (c.dmd2) job.distil = programs_of(*c.dmd2);
  job.loss = loss_of(c);
  job.masks = (run.dataset->has_masks() || (coming != nullptr && coming->masks)) && !c.dmd2;
  job.prefetch = true;
  job.lora = lora_of(c.adapter);
  if (c.method == Method::lora) job.lora.excluded = excluded_modules(c.adapter, job.config);
  job.record_update = true;
  job.parallel = parallel_of(run);
  job.optimizer = c.optimizer;
  check_optimizer(c.optimizer, job.lora);
  job.max_grad_norm = c.max_grad_norm;
}

// The policy or the number of streamed blocks that the configuration asks for.
void choose_policy(PreparedRun& run) {
  const TrainConfig& c = run.config;
  fit::Request& r = run.request;
  const wan::Config& model = run.model();
  if (c.memory.policy != "auto") {
    r.policy = find_policy(c.memory.policy);
    if (!r.policy) fail(ErrorCode::input, "policy = '{}' is unknown", c.memory.policy);
  }
  if (r.policy && c.memory.stream_blocks) {
    fail(ErrorCode::usage,
         fmt::format("stream_blocks = {} and policy = '{}' contradict each other",
                     *c.memory.stream_blocks, c.memory.policy),
         {{"leave out policy", "the fastest plan that streams so many blocks"},
          {"leave out stream_blocks", "the policy as it is"}});
  }
  if (c.method == Method::full && !c.student && wan::job_of(r).experts.size() > 1) {
    fail(ErrorCode::input, "both experts of a model are trained by adapters, not whole",
         {{"[adapter] type = 'lora'", "trains a LoRA for each expert"},
          {"experts = \"one\"", "trains one of them, chosen by min_t and max_t"}});
  }
  if (!c.memory.stream_blocks) return;
  if (*c.memory.stream_blocks < 0 || *c.memory.stream_blocks > model.layers) {
    fail(ErrorCode::input, "[memory] stream_blocks = {}: {} has {} blocks", *c.memory.stream_blocks,
         model.name, model.layers);
  }
  r.streamed_blocks = *c.memory.stream_blocks;
}

// Lines of the plan that are no buffers of the training programs.
void add_other_lines(PreparedRun& run) {
  const TrainConfig& c = run.config;
  fit::Request& r = run.request;
  r.other_lines = {index_line(*run.dataset),
                   {"data reader", data::Prefetcher::kBytes, "reads the next step's samples"},
                   {"training loop", kLoopBytes, "logs, reports, pieces of files being written"}};
  if (c.parallel.ranks > 1) {
    r.other_lines.push_back({"exchange between ranks",
                             HostRanks::memory_for(static_cast<int>(c.parallel.ranks)),
                             "bytes on their way, which all ranks of a host share"});
  }
  if (wan::job_of(r).teacher && wan::job_of(r).teacher->guided) {
    const auto states = static_cast<std::uint64_t>(run.model().text_len * run.model().text_dim);
    r.other_lines.push_back(
        {"empty caption", Bytes{states * sizeof(float)}, "for the teacher's guidance"});
  }
  add_previews(run);
  if (c.model.base_loras.empty()) return;
  Bytes merged = run.checkpoints.empty() ? published_bytes(r) : Bytes{};
  for (const WeightFiles& file : run.checkpoints) merged += base_merge_bytes(file);
  r.other_lines.push_back({"merged base weights", merged,
                           "the model with its base LoRAs, made once beside the runs", Tier::disk});
}

std::string title_text(const PreparedRun& run) {
  const TrainConfig& c = run.config;
  const wan::FitJob& job = wan::job_of(run.request);
  std::string title =
      fmt::format("{}, {}", run.model().name,
                  c.method == Method::lora ? fmt::format("LoRA rank {}", c.adapter.rank)
                                           : std::string("full fine-tune"));
  if (!c.student && job.experts.size() > 1) title += ", both experts";
  if (c.student) {
    title += fmt::format(", taught by {}{}", job.teacher->config.name,
                         job.teacher->experts.size() > 1 ? ", both experts" : "");
  }
  if (c.dmd2) title += fmt::format(", distilled to {} steps", c.dmd2->steps.size());
  if (c.parallel.ranks > 1) title += fmt::format(", {} ranks", c.parallel.ranks);
  return title;
}

}  // namespace

PreparedRun prepare_run(TrainConfig config, const RunTarget& target, Purpose purpose,
                        const ComingData* coming) {
  check(coming == nullptr || purpose == Purpose::plan, "a run on data that is not there yet");
  PreparedRun run;
  run.config = std::move(config);
  if (purpose == Purpose::train) take_parallel(run.config, run.notes);
  const TrainConfig& c = run.config;
  open_run_model(run, target, purpose);
  open_datasets(run, purpose, coming);
  run.total_steps = total_steps(c, std::max<std::int64_t>(1, run.steps_per_epoch));
  run.schedule = schedule_of(c, std::max<std::int64_t>(1, run.steps_per_epoch));
  run.config_hash = config_hash(c, run.schedule, *run.dataset);
  describe_job(run, coming);
  choose_policy(run);
  add_other_lines(run);
  run.title = title_text(run);
  run.shapes = shapes_text(run);
  for (const std::string& n : c.notes) run.notes.push_back(n);
  // Before anything is encoded they would say that nothing is.
  if (coming == nullptr) {
    for (const std::string& n : run.dataset->notes()) run.notes.push_back(n);
  }
  return run;
}

}  // namespace ballast::train
