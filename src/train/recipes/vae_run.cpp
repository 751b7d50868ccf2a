#include "train/recipes/vae_run.h"

#include <algorithm>
#include <filesystem>

#include "core/error.h"
#include "core/path_kind.h"
#include "core/to_size.h"
#include "data/prefetcher.h"
#include "infer/model_folder.h"
#include "io/weight_file_parts.h"
#include "models/wan_vae/initial_weights.h"
#include "train/run/config_hash.h"
#include "train/run/run_files.h"

namespace ballast::train {
namespace {

// As the loop of a transformer: logs, the report, pieces of files being written.
constexpr Bytes kVaeLoopBytes = 3_MiB;
// |e| for all that 8-bit pixels can differ by, and a slope at 0.
constexpr double kL1Delta = 0x1p-14;

std::string vae_file(const VaeConfig& c) {
  if (!is_folder(c.file)) return c.file;
  const std::string found = infer::find_model_files(c.file).vae;
  return found.empty() ? c.file : found;
}

wan_vae::Recognised recognised_vae(const WeightFiles& file) {
  if (auto found = wan_vae::recognise(file)) return *std::move(found);
  fail(ErrorCode::input, fmt::format("{} holds no VAE of Wan", file.path()),
       {{"ballast inspect " + file.path(), "says what it is"}});
}

std::string mode_of(const TrainConfig& c) {
  return c.vae->file.empty() ? "training from scratch" : "full fine-tune";
}

// The file with a VAE's first weights.
std::string initial_file(const TrainConfig& c) {
  const wan_vae::Config& n = c.vae->network;
  const std::string path =
      fmt::format("{}/initial-vae{}-{}-{}-{}-seed{}.safetensors", c.output_dir,
                  n.folded() ? "22" : "21", n.encoder_dim, n.decoder_dim, n.z_dim, c.seed);
  std::error_code error;
  if (std::filesystem::exists(path, error)) return path;
  std::filesystem::create_directories(c.output_dir, error);
  wan_vae::write_initial_weights(path, n, c.seed);
  return path;
}

void open_network(PreparedVae& run, Purpose purpose) {
  const VaeConfig& v = *run.config.vae;
  if (v.file.empty() && purpose == Purpose::plan) {
    run.request.job = wan_vae::TrainingFitJob({.config = v.network, .clips = {}},
                                              planned_units(encoder(v.network), DType::f32),
                                              planned_units(decoder(v.network), DType::f32));
    return;
  }
  const WeightFiles& file = run.checkpoints.emplace_back(
      open_part(v.file.empty() ? initial_file(run.config) : vae_file(v), ModelPart::vae));
  const wan_vae::Recognised found = recognised_vae(file);
  wan_vae::TrainingJob training = {.config = found.config, .clips = {}};
  if (v.file.empty()) training.config.name = v.network.name;
  run.request.job = wan_vae::TrainingFitJob(
      std::move(training), stored_units(encoder(found.config), file, found.dialect),
      stored_units(decoder(found.config), file, found.dialect));
}

std::unique_ptr<data::Dataset> open_clips(const PreparedVae& run, Purpose purpose,
                                          const DataChange& change = {}) {
  const TrainConfig& c = run.config;
  return data::open_dataset({.path = c.dataset.config,
                             .named = c.dataset.named,
                             .needs = vae_needs(run.network().pixels_per_latent()),
                             .cache_name = kVaeCache,
                             .micro_batch =
                                 [clips = c.micro_batch, images = c.image_micro_batch](
                                     std::int64_t width, std::int64_t height, std::int64_t frames) {
                                   return (frames == 1 ? images : clips)
                                       .for_size(static_cast<double>(width),
                                                 static_cast<double>(height));
                                 },
                             .accumulation = c.gradient_accumulation,
                             .clip_mode = c.video_clip_mode,
                             .allow_many_resolutions = c.allow_many_resolutions,
                             .trust_cache = c.trust_cache,
                             .planning = purpose == Purpose::plan,
                             .frame_buckets = change.frame_buckets,
                             .resolution = change.resolution});
}

wan_vae::LatentClip clip_of(const data::Bucket& b, std::int64_t side) {
  return {.frames = wan_vae::latent_frames(b.shape.frames),
          .height = b.shape.height / side,
          .width = b.shape.width / side};
}

// Every bucket is a kind of clip.
void add_clips(PreparedVae& run, Purpose purpose) {
  const TrainConfig& c = run.config;
  wan_vae::TrainingJob& job = run.training();
  const auto add = [&](const data::Bucket& b) {
    const wan_vae::LatentClip clip = clip_of(b, run.network().pixels_per_latent());
    const auto found = std::ranges::find(job.clips, clip);
    run.kinds.push_back(to_size(found - job.clips.begin()));
    if (found == job.clips.end()) job.clips.push_back(clip);
    if (!run.shapes.empty()) run.shapes += ", ";
    run.shapes += fmt::format("{} clips of {} x {} x {}", b.micro_batch * c.gradient_accumulation,
                              b.shape.frames, b.shape.height, b.shape.width);
  };
  for (const data::Bucket& b : run.dataset->buckets()) add(b);
  const auto largest = run.dataset->largest_allowed_bucket();
  if (purpose == Purpose::plan && !run.dataset->fully_cached() && largest) {
    add(*largest);
    run.notes.push_back("the clips are not cached yet: planned for the largest the dataset allows");
  }
  if (job.clips.empty()) {
    fail(ErrorCode::input, "{}: there is nothing to train on", c.dataset.config);
  }
}

}  // namespace

data::ModelNeeds vae_needs(std::int64_t side) {
  return {.latent_channels = 3,
          .conditioning_channels = 0,
          .text_len = 0,
          .text_dim = 0,
          .pixel_multiple = side,
          .spatial_stride = 1,
          .temporal_stride = 1,
          .fps = side == 16 ? 24.0 : 16.0,
          .pixels = true};
}

std::vector<wan_vae::LatentClip> clips_with(const PreparedVae& run, const DataChange& change) {
  const auto dataset = open_clips(run, Purpose::plan, change);
  const std::int64_t side = run.network().pixels_per_latent();
  std::vector<wan_vae::LatentClip> all;
  const auto add = [&](const data::Bucket& b) {
    const wan_vae::LatentClip clip = clip_of(b, side);
    if (std::ranges::find(all, clip) == all.end()) all.push_back(clip);
  };
  for (const data::Bucket& b : dataset->buckets()) add(b);
  const auto largest = dataset->largest_allowed_bucket();
  if (largest && !dataset->fully_cached()) add(*largest);
  return all;
}

wan_vae::Config vae_network(const VaeConfig& c) {
  return c.file.empty() ? c.network : recognised_vae(open_part(vae_file(c), ModelPart::vae)).config;
}

PreparedVae prepare_vae(TrainConfig config, const RunTarget& target, Purpose purpose) {
  PreparedVae run;
  run.config = std::move(config);
  const TrainConfig& c = run.config;
  if (!c.eval_datasets.empty()) {
    fail(ErrorCode::input, "eval_datasets: the training of a VAE has no evaluation");
  }
  open_network(run, purpose);
  run.dataset = open_clips(run, purpose);
  add_clips(run, purpose);
  run.steps_per_epoch = std::ssize(run.dataset->epoch(1, c.seed));
  run.total_steps = total_steps(c, std::max<std::int64_t>(1, run.steps_per_epoch));
  run.schedule = schedule_of(c, std::max<std::int64_t>(1, run.steps_per_epoch));
  run.config_hash = config_hash(c, run.schedule, *run.dataset);

  fit::Request& r = run.request;
  r.profile = target.profile;
  r.backend = target.backend;
  r.budget = resolve_budget(target, c.memory);
  if (c.memory.checkpointing != Checkpointing::automatic) {
    r.policy = wan_vae::training_policy(c.memory.checkpointing != Checkpointing::off);
  }
  wan_vae::TrainingJob& job = run.training();
  // The CPU has no bf16 to gain from.
  job.dtype = target.backend.device == Device::cuda ? c.model.dtype : DType::f32;
  if (c.vae->reconstruction == Reconstruction::l1) {
    job.reconstruction = {.kind = ops::LossKind::smooth_l1, .delta = kL1Delta};
  }
  job.kl_weight = c.vae->kl_weight;
  job.train_encoder = c.vae->train_encoder;
  job.optimizer = c.optimizer;
  job.max_grad_norm = c.max_grad_norm;
  r.other_lines = {
      {"dataset index", run.dataset->bytes(), "which clips there are"},
      {"data reader", data::Prefetcher::kBytes, "reads the next clip"},
      {"training loop", kVaeLoopBytes, "logs, reports, pieces of files being written"}};
  run.title = fmt::format("{}, {}", run.network().name, mode_of(c));
  run.notes.insert(run.notes.end(), c.notes.begin(), c.notes.end());
  const auto notes = run.dataset->notes();
  run.notes.insert(run.notes.end(), notes.begin(), notes.end());
  return run;
}

PlanTitle title_of(const PreparedVae& run) {
  const fit::Request& r = run.request;
  const auto& job = r.job.as<wan_vae::TrainingFitJob>();
  TrainingSizes sizes;
  const auto count = [&](const std::vector<wan_vae::StoredUnit>& units) {
    for (const wan_vae::StoredUnit& u : units) {
      for (const StoredBytes& t : u) sizes.parameters += t.shape.elements();
    }
  };
  count(job.decoder);
  if (run.training().train_encoder) count(job.encoder);
  for (const data::Bucket& b : run.dataset->buckets()) {
    const std::int64_t batch = b.micro_batch * run.config.gradient_accumulation;
    sizes.batch = std::max(sizes.batch, batch);
    sizes.min_batch = sizes.min_batch == 0 ? batch : std::min(sizes.min_batch, batch);
  }
  return {.model = run.network().name,
          .mode = mode_of(run.config),
          .shape = run.shapes,
          .weights = run.training().dtype == DType::f32 ? "f32" : "bf16 with f32 masters",
          .machine = machine_text(r.profile),
          .budget = r.budget,
          .shared_ram = r.profile.device == Device::cpu,
          .sizes = sizes,
          .ram_of_this_machine = borrows_ram(r.profile, run.config.memory.ram.has_value())};
}

PlanView view_of(const PreparedVae& run, const fit::PlannedRun& planned) {
  PlanView view = {.plan = planned.plan,
                   .times = planned.times,
                   .lines = planned.lines,
                   .policy = wan_vae::checkpoints(planned.policy) ? "recompute" : "resident",
                   .policy_text = wan_vae::training_text(planned.policy)};
  const auto buckets = run.dataset->buckets();
  for (std::size_t b = 0; b < buckets.size(); ++b) {
    const std::int64_t clips = buckets[b].micro_batch * run.config.gradient_accumulation;
    const double update = planned.seconds_of_update();
    const double clip = planned.seconds_of_step(run.kinds[b]) - update;
    view.step_seconds.push_back(update + static_cast<double>(clips) * clip);
    view.passes.push_back({.count = clips, .shortest = clip, .longest = clip});
    view.steps_of_kind.push_back(buckets[b].items / clips);
  }
  view.total_steps = run.steps_per_epoch > 0 ? run.total_steps : 0;
  view.notes = run.notes;
  view.files = files_of({.config = run.config,
                         .total_steps = run.total_steps,
                         .steps_per_epoch = run.steps_per_epoch,
                         .parameters = title_of(run).sizes.parameters,
                         .saved = run.config.save_dtype},
                        run.request.profile.name == kThisMachine);
  return view;
}

}  // namespace ballast::train
