#include "train/run/prepared_run.h"

#include <algorithm>
#include <regex>

#include "core/error.h"
#include "core/log.h"
#include "core/to_size.h"
#include "data/prefetcher.h"
#include "io/hub_cache.h"
#include "models/wan/dit_pass.h"
#include "models/wan/lora_read.h"
#include "models/wan/recognise.h"
#include "models/wan/weights.h"
#include "train/run/base_merge.h"
#include "train/run/config_hash.h"
#include "train/run/distilled_model.h"
#include "train/run/model_choice.h"
#include "train/run/model_parts.h"
#include "train/run/published_model.h"
#include "train/run/run_model.h"

namespace ballast::train {

Budget budget_of(const MemoryConfig& m, const RunTarget& target) {
  return budget_on(target, {.gpu = m.gpu, .ram = m.ram, .disk = m.disk}, m.ignore_limits);
}

namespace {

// Memory of the loop itself: logs, the writer's pieces while saving, and at the end the report,
// which takes 2 MB from the longest list of steps it is made of (kMaxSteps).
constexpr Bytes kLoopBytes = 3_MiB;

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

struct Sizes {
  BatchSizes clips, images;
  std::int64_t accumulation = 1;
};

auto micro_batches(const Sizes& sizes) {
  return [sizes](std::int64_t width, std::int64_t height, std::int64_t frames) {
    return (frames == 1 ? sizes.images : sizes.clips)
        .for_size(static_cast<double>(width), static_cast<double>(height));
  };
}

std::unique_ptr<data::Dataset> open_data(const PreparedRun& run, const DatasetRef& ref,
                                         const Sizes& sizes, Purpose purpose,
                                         const DataChange& change = {}) {
  data::DatasetRequest request{.path = ref.config,
                               .named = ref.named,
                               .needs = needs_of(run.config.model, run.model()),
                               .cache_name = cache_name_of(run.config.model, run.model()),
                               .micro_batch = micro_batches(sizes),
                               .accumulation = sizes.accumulation,
                               .clip_mode = run.config.video_clip_mode,
                               .allow_many_resolutions = run.config.allow_many_resolutions,
                               .trust_cache = run.config.trust_cache,
                               .planning = purpose == Purpose::plan,
                               .frame_buckets = change.frame_buckets,
                               .resolution = change.resolution};
  use_vae_statistics(available_vae(run.config), request);
  return data::open_dataset(request);
}

wan::Batch batch_of(const data::LatentShape& s, std::size_t samples) {
  return {.latents = std::vector(samples, wan::LatentSize{s.frames, s.height, s.width}),
          .timestep_rows = static_cast<std::int64_t>(samples)};
}

struct Steps {
  std::vector<wan::Batch> batches;
  std::map<std::pair<std::uint32_t, std::size_t>, std::size_t> kinds;
  std::vector<std::int64_t> counts;  // by kind, in an epoch
  std::int64_t in_epoch = 0;
  std::optional<data::Bucket> uncached;  // the largest that may come
};

// Every kind of step that an epoch has; where nothing is cached yet, the largest that may come.
Steps steps_of(const data::Dataset& dataset, std::uint64_t seed, std::int64_t accumulation,
               Purpose purpose, const ComingData* coming = nullptr) {
  Steps steps;
  const std::vector<data::StepBatch> epoch = dataset.epoch(1, seed);
  steps.in_epoch = std::ssize(epoch);
  for (const data::StepBatch& step : epoch) {
    const auto key = std::pair(step.bucket, step.samples.size());
    const auto [kind, added] = steps.kinds.emplace(key, steps.batches.size());
    if (added) {
      steps.batches.push_back(batch_of(dataset.buckets()[step.bucket].shape, step.samples.size()));
      steps.counts.push_back(0);
    }
    ++steps.counts[kind->second];
  }
  const auto add = [&](const data::Bucket& b) {
    const wan::Batch batch = batch_of(b.shape, to_size(b.micro_batch * accumulation));
    if (std::ranges::find(steps.batches, batch) != steps.batches.end()) return;
    steps.batches.push_back(batch);
    steps.counts.push_back(0);
  };
  if (coming != nullptr) {
    for (const data::Bucket& b : coming->training) add(b);
    return steps;
  }
  if (purpose == Purpose::train || dataset.fully_cached()) return steps;
  steps.uncached = dataset.largest_allowed_bucket();
  if (steps.uncached) add(*steps.uncached);
  return steps;
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
  if (a.rank == 0) fail(ErrorCode::input, fmt::format("{} has no factors", lora.path()));
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

void add_steps(PreparedRun& run, Purpose purpose, const ComingData* coming) {
  Steps steps =
      steps_of(*run.dataset, run.config.seed, run.config.gradient_accumulation, purpose, coming);
  if (steps.uncached) {
    const data::LatentShape& z = steps.uncached->shape;
    run.notes.push_back(
        fmt::format("the dataset is not cached yet: planned for the largest bucket it allows, a "
                    "latent of {} x {} x {}",
                    z.frames, z.height, z.width));
  }
  if (steps.batches.empty()) {
    fail(ErrorCode::input,
         fmt::format("{}: there is nothing to train on", run.config.dataset.config));
  }
  wan::job_of(run.request).dit.batches = std::move(steps.batches);
  run.kinds = std::move(steps.kinds);
  run.kind_steps = std::move(steps.counts);
  run.steps_per_epoch = steps.in_epoch;
}

Sizes sizes_of(const TrainConfig& c) {
  return {c.micro_batch, c.image_micro_batch, c.gradient_accumulation};
}

void add_evaluation(PreparedRun& run, Purpose purpose, const ComingData* coming) {
  for (const DatasetRef& ref : run.config.eval_datasets) {
    EvalSet& set = run.evals.emplace_back();
    set.name = ref.name;
    const Sizes sizes = {run.config.eval_micro_batch, run.config.eval_image_micro_batch};
    set.dataset = while_doing(fmt::format("opening the evaluation dataset \"{}\"", ref.name),
                              [&] { return open_data(run, ref, sizes, purpose); });
    set.first_run = wan::job_of(run.request).dit.eval_batches.size();
    for (const data::Bucket& b : set.dataset->buckets()) {
      // One sample at a time: the loss is a mean over samples whatever shares a run.
      wan::job_of(run.request).dit.eval_batches.push_back(batch_of(b.shape, 1));
    }
    const std::size_t number = run.evals.size() - 1;
    if (coming == nullptr || number >= coming->evaluation.size()) continue;
    for (const data::Bucket& b : coming->evaluation[number]) {
      wan::job_of(run.request).dit.eval_batches.push_back(batch_of(b.shape, 1));
    }
  }
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

ProcessLine index_line(const data::Dataset& dataset) {
  return {"dataset index", dataset.bytes(), "which clips and captions there are"};
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

}  // namespace

std::function<std::int64_t(std::int64_t, std::int64_t, std::int64_t)> micro_batches_of(
    const TrainConfig& config) {
  return micro_batches(sizes_of(config));
}

ChangedData data_with(const PreparedRun& run, const DataChange& change) {
  Sizes sizes = sizes_of(run.config);
  if (change.micro_batch) {
    const bool alike = run.config.image_micro_batch == run.config.micro_batch;
    sizes.clips = {.by_side = {}, .plain = *change.micro_batch};
    if (alike) sizes.images = sizes.clips;  // else it has a key of its own
  }
  sizes.accumulation = change.accumulation.value_or(sizes.accumulation);
  const auto dataset = open_data(run, run.config.dataset, sizes, Purpose::plan, change);
  return {steps_of(*dataset, run.config.seed, sizes.accumulation, Purpose::plan).batches,
          index_line(*dataset)};
}

PreparedRun prepare_run(TrainConfig config, const RunTarget& target, Purpose purpose,
                        const ComingData* coming) {
  check(coming == nullptr || purpose == Purpose::plan, "a run on data that is not there yet");
  PreparedRun run;
  run.config = std::move(config);
  const TrainConfig& c = run.config;
  fit::Request& r = run.request;
  wan::DitJob& job = wan::job_of(r).dit;
  job.config = choose_model(run, purpose);
  r.profile = target.profile;
  r.backend = target.backend;
  if (c.student) {
    take_student(run, purpose);
    wan::job_of(r).teacher->format = frozen_format(c.model);
  }
  check_loras(run);
  note_dtype(run);
  r.budget = budget_of(c.memory, target);
  run.dataset = open_data(run, c.dataset, sizes_of(c), purpose);
  // Of data that comes the empty caption comes too.
  const bool known =
      purpose == Purpose::train || (coming == nullptr && run.dataset->fully_cached());
  if (c.uncond_fraction > 0 && known && !run.dataset->has_empty_caption()) {
    fail(ErrorCode::input,
         fmt::format("uncond_fraction = {} drops captions, but the cache of {} has no embedding of "
                     "the empty caption",
                     c.uncond_fraction, c.dataset.config),
         {{"ballast cache with the same arguments", "encodes it with the captions of media"},
          {"uncond_fraction = 0", "every caption is kept"}});
  }
  if (c.dmd2 || c.student) check_distillable(run, known);
  add_steps(run, purpose, coming);
  add_evaluation(run, purpose, coming);
  run.total_steps = total_steps(c, std::max<std::int64_t>(1, run.steps_per_epoch));
  run.schedule = schedule_of(c, std::max<std::int64_t>(1, run.steps_per_epoch));
  run.config_hash = config_hash(c, run.schedule, *run.dataset);

  job.mode = c.method == Method::lora ? wan::Mode::lora : wan::Mode::full;
  job.precision = precision_on(target.backend.device);
  job.format = c.method == Method::full ? format_of(c.model.dtype) : frozen_format(c.model);
  if (c.memory.fp8_matmul) use_fp8_products(job, r.backend);
  job.noising = c.dmd2 || c.student ? wan::Noising::prepared : wan::Noising::recorded;
  if (c.dmd2) job.distil = programs_of(*c.dmd2);
  job.loss = loss_of(c);
  job.masks = (run.dataset->has_masks() || (coming != nullptr && coming->masks)) && !c.dmd2;
  job.prefetch = true;
  job.lora = {.rank = c.adapter.rank,
              .alpha = static_cast<float>(
                  c.adapter.alpha > 0 ? c.adapter.alpha : static_cast<double>(c.adapter.rank)),
              .dropout = c.adapter.dropout,
              .hidden_dropout = c.adapter.hidden_dropout,
              .rank_dropout = c.adapter.rank_dropout,
              .module_dropout = c.adapter.module_dropout,
              .dtype = c.adapter.dtype,
              .up_rate = c.adapter.up_rate_ratio,
              .max_norm = c.adapter.max_norm};
  if (c.method == Method::lora) job.lora.excluded = excluded_modules(c.adapter, job.config);
  job.record_update = true;
  job.optimizer = c.optimizer;
  if (job.lora.up_rate != 1 && !has_rate(c.optimizer.kind)) {
    fail(ErrorCode::input,
         fmt::format("loraplus_lr_ratio needs an optimizer of the Adam family, {} "
                     "has one learning rate for all",
                     name_of(c.optimizer.kind)));
  }
  if (job.lora.max_norm > 0 && c.optimizer.ema_decay) {
    fail(ErrorCode::input,
         "scale_weight_norms limits the norms of what is trained; with ema_decay an average is "
         "saved, whose norms have no limit",
         {{"leave out ema_decay", "what is saved keeps to the limit"},
          {"leave out scale_weight_norms", "the average is saved, without a limit"}});
  }
  job.max_grad_norm = c.max_grad_norm;

  if (c.memory.policy != "auto") {
    r.policy = find_policy(c.memory.policy);
    if (!r.policy) fail(ErrorCode::input, fmt::format("policy = '{}' is unknown", c.memory.policy));
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
  if (c.memory.stream_blocks) {
    if (*c.memory.stream_blocks < 0 || *c.memory.stream_blocks > job.config.layers) {
      fail(ErrorCode::input,
           fmt::format("[memory] stream_blocks = {}: {} has {} blocks", *c.memory.stream_blocks,
                       job.config.name, job.config.layers));
    }
    r.streamed_blocks = *c.memory.stream_blocks;
  }
  r.other_lines = {index_line(*run.dataset),
                   {"data reader", data::Prefetcher::kBytes, "reads the next step's samples"},
                   {"training loop", kLoopBytes, "logs, reports, pieces of files being written"}};
  if (wan::job_of(r).teacher && wan::job_of(r).teacher->guided) {
    const auto states = static_cast<std::uint64_t>(job.config.text_len * job.config.text_dim);
    r.other_lines.push_back(
        {"empty caption", Bytes{states * sizeof(float)}, "for the teacher's guidance"});
  }
  add_previews(run);
  if (!c.model.base_loras.empty()) {
    Bytes merged = run.checkpoints.empty() ? published_bytes(r) : Bytes{};
    for (const WeightFiles& file : run.checkpoints) merged += base_merge_bytes(file);
    r.other_lines.push_back({"merged base weights", merged,
                             "the model with its base LoRAs, made once beside the runs",
                             Tier::disk});
  }
  run.title = fmt::format("{}, {}", job.config.name,
                          c.method == Method::lora ? fmt::format("LoRA rank {}", c.adapter.rank)
                                                   : std::string("full fine-tune"));
  if (!c.student && wan::job_of(r).experts.size() > 1) run.title += ", both experts";
  if (c.student) {
    run.title += fmt::format(", taught by {}{}", wan::job_of(r).teacher->config.name,
                             wan::job_of(r).teacher->experts.size() > 1 ? ", both experts" : "");
  }
  if (c.dmd2) run.title += fmt::format(", distilled to {} steps", c.dmd2->steps.size());
  run.shapes = shapes_text(run);
  for (const std::string& n : c.notes) run.notes.push_back(n);
  // Before anything is encoded they would say that nothing is.
  if (coming == nullptr) {
    for (const std::string& n : run.dataset->notes()) run.notes.push_back(n);
  }
  return run;
}

}  // namespace ballast::train
