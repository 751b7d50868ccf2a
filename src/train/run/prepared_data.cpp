#include "train/run/prepared_data.h"

#include <algorithm>

#include "core/error.h"
#include "core/to_size.h"
#include "models/wan/dit.h"
#include "train/run/distilled_model.h"
#include "train/run/model_parts.h"

namespace ballast::train {
namespace {

struct Sizes {
  BatchSizes clips, images;
  std::int64_t accumulation = 1;
};

Sizes sizes_of(const TrainConfig& c) {
  return {c.micro_batch, c.image_micro_batch, step_accumulation(c)};
}

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

void add_steps(PreparedRun& run, Purpose purpose, const ComingData* coming) {
  Steps steps =
      steps_of(*run.dataset, run.config.seed, step_accumulation(run.config), purpose, coming);
  if (steps.uncached) {
    const data::LatentShape& z = steps.uncached->shape;
    run.notes.push_back(
        fmt::format("the dataset is not cached yet: planned for the largest bucket it allows, a "
                    "latent of {} x {} x {}",
                    z.frames, z.height, z.width));
  }
  if (steps.batches.empty()) {
    fail(ErrorCode::input, "{}: there is nothing to train on", run.config.dataset.config);
  }
  wan::job_of(run.request).dit.batches = std::move(steps.batches);
  run.kinds = std::move(steps.kinds);
  run.kind_steps = std::move(steps.counts);
  run.steps_per_epoch = steps.in_epoch;
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

// Of data that comes the empty caption comes too.
void check_captions(const PreparedRun& run, bool cache_known) {
  const TrainConfig& c = run.config;
  if (c.uncond_fraction > 0 && cache_known && !run.dataset->has_empty_caption()) {
    fail(ErrorCode::input,
         fmt::format("uncond_fraction = {} drops captions, but the cache of {} has no embedding of "
                     "the empty caption",
                     c.uncond_fraction, c.dataset.config),
         {{"ballast cache with the same arguments", "encodes it with the captions of media"},
          {"uncond_fraction = 0", "every caption is kept"}});
  }
  if (c.dmd2 || c.student) check_distillable(run, cache_known);
}

}  // namespace

ProcessLine index_line(const data::Dataset& dataset) {
  return {"dataset index", dataset.bytes(), "which clips and captions there are"};
}

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
  if (change.accumulation) {
    TrainConfig changed = run.config;
    changed.gradient_accumulation = *change.accumulation;
    sizes.accumulation = step_accumulation(changed);
  }
  const auto dataset = open_data(run, run.config.dataset, sizes, Purpose::plan, change);
  return {steps_of(*dataset, run.config.seed, sizes.accumulation, Purpose::plan).batches,
          index_line(*dataset)};
}

void open_datasets(PreparedRun& run, Purpose purpose, const ComingData* coming) {
  const TrainConfig& c = run.config;
  run.dataset = open_data(run, c.dataset, sizes_of(c), purpose);
  check_captions(run,
                 purpose == Purpose::train || (coming == nullptr && run.dataset->fully_cached()));
  add_steps(run, purpose, coming);
  add_evaluation(run, purpose, coming);
}

}  // namespace ballast::train
