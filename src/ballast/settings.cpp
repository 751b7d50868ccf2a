#include "ballast/settings.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/nearest_name.h"
#include "core/random.h"
#include "fit/refusal_text.h"
#include "infer/model_folder.h"
#include "memory/machine.h"
#include "models/wan/recognise.h"
#include "models/wan/weights.h"
#include "train/run/run_plan.h"
#include "train/run/run_summary.h"

namespace ballast::library {
namespace {

// Memory of the object itself: pieces of files being written.
constexpr Bytes kLibraryBytes = 4_MiB;
constexpr std::int64_t kMaxSide = 1 << 16, kMaxCells = std::int64_t{1} << 31;
constexpr std::size_t kMaxSamples = 1024;

[[noreturn]] void fail_option(const char* name, const std::string& value,
                              std::string_view expected) {
  fail(ErrorCode::usage,
       fmt::format("TrainingOptions::{} is {}, expected {}", name, printable(value), expected));
}

void check_number(const char* name, double value, double least, double most, const char* expected) {
  if (!(value >= least && value <= most)) {
    fail_option(name, fmt::format("{}", value), expected);
  }
}

wan::Batch batch_of(const v1::Batch& batch) {
  wan::Batch b;
  for (const v1::LatentSize& z : batch) b.latents.push_back(latent_of(z));
  b.timestep_rows = std::ssize(b.latents);
  return b;
}

// Every size once, a sample at a time.
std::vector<wan::Batch> single_samples(const std::vector<wan::Batch>& batches) {
  std::vector<wan::Batch> singles;
  for (const wan::Batch& b : batches) {
    for (const wan::LatentSize& z : b.latents) {
      const wan::Batch one = {.latents = {z}, .timestep_rows = 1};
      if (std::ranges::find(singles, one) == singles.end()) singles.push_back(one);
    }
  }
  return singles;
}

train::TrainConfig config_of(const v1::TrainingOptions& o) {
  train::TrainConfig c;
  c.output_name = "library";
  c.method = o.method == v1::Method::full ? train::Method::full : train::Method::lora;
  c.adapter.rank = o.rank;
  c.adapter.alpha = o.alpha;
  c.adapter.dropout = o.dropout;
  c.adapter.init_from = o.init_from;
  c.optimizer.kind = *find_optimizer(o.optimizer);
  c.optimizer.beta1 = o.beta1;
  c.optimizer.beta2 = o.beta2;
  c.optimizer.eps = o.eps;
  c.optimizer.weight_decay = o.weight_decay;
  c.optimizer.ema_decay = o.ema_decay;
  c.max_grad_norm = o.max_grad_norm;
  c.seed = o.seed;
  c.timesteps.sampling = o.timesteps == "uniform" ? train::TimestepSampling::table_uniform
                                                  : train::TimestepSampling::table_logit_normal;
  c.timesteps.shift = o.shift;
  c.timesteps.min_t = o.min_t;
  c.timesteps.max_t = o.max_t;
  c.timesteps.time_offset = o.time_offset;
  return c;
}

wan::Mode mode_of(v1::Method m) {
  switch (m) {
    case v1::Method::full:
      return wan::Mode::full;
    case v1::Method::predict_only:
      return wan::Mode::infer;
    case v1::Method::lora:
      break;
  }
  return wan::Mode::lora;
}

std::string shapes_text(const std::vector<wan::Batch>& batches) {
  std::string text;
  for (std::size_t i = 0; i < std::min<std::size_t>(batches.size(), 3); ++i) {
    const wan::LatentSize& z = batches[i].latents[0];
    text += fmt::format("{}{} x {} x {} x {}", i ? ", " : "", batches[i].latents.size(), z.frames,
                        z.height, z.width);
  }
  if (batches.size() > 3) text += fmt::format(" and {} more", batches.size() - 3);
  return text + " latents";
}

}  // namespace

train::PreparedRun open_run(const std::string& path) {
  train::PreparedRun run;
  const std::string found = infer::model_path(path);
  const WeightFiles& file = run.checkpoints.emplace_back(WeightFiles::open(
      infer::holds_parts(found) ? infer::find_model_files(found).transformer : found));
  const wan::TensorMap names(file);
  const wan::Config config = recognised_config(file, names, path);
  wan::job_of(run.request).dit.config = config;
  wan::job_of(run.request).experts.push_back(weight_groups(config, file, names));
  return run;
}

v1::ModelInfo info_of(const train::PreparedRun& run) {
  const wan::Config& c = run.model();
  const WeightFiles& file = run.checkpoints[0];
  v1::ModelInfo info = {.path = file.path(),
                        .name = c.name,
                        .layers = c.layers,
                        .width = c.dim,
                        .heads = c.heads,
                        .feed_forward = c.ffn_dim,
                        .latent_channels = c.out_dim,
                        .conditioning_channels = c.conditioning(),
                        .text_rows = c.text_len,
                        .text_width = c.text_dim,
                        .pixels_per_cell = c.spatial_stride,
                        .warnings = {file.warnings().begin(), file.warnings().end()}};
  for (const WeightTensor& t : file.tensors()) {
    info.parameters += static_cast<std::uint64_t>(t.entry->shape.elements());
    info.bytes += t.entry->bytes;
  }
  return info;
}

void check_training(const v1::TrainingOptions& o, const wan::Config& model) {
  check_number("rank", static_cast<double>(o.rank), 1, static_cast<double>(model.dim),
               "1 to the model's width");
  check_number("alpha", o.alpha, 0, 1e9, "0 (the rank) or more");
  check_number("dropout", o.dropout, 0, 0.999, "0 to 0.999");
  check_number("learning_rate", o.learning_rate, 0, 1e6, "0 or more");
  check_number("beta1", o.beta1, 0, 1 - 1e-9, "0 to below 1");
  check_number("beta2", o.beta2, 0, 1 - 1e-12, "0 to below 1");
  check_number("eps", o.eps, 0, 1, "0 to 1");
  check_number("weight_decay", o.weight_decay, 0, 1e6, "0 or more");
  check_number("ema_decay", o.ema_decay.value_or(0), 0, 1, "0 to 1");
  check_number("max_grad_norm", o.max_grad_norm, 0, 1e30, "0 (no clipping) or more");
  check_number("shift", o.shift, 0, 1e6, "0 (none) or more");
  check_number("min_t", o.min_t, 0, 1, "0 to 1");
  check_number("max_t", o.max_t, o.min_t, 1, "min_t to 1");
  check_number("time_offset", o.time_offset, -1000, 1000, "-1000 to 1000");
  if (!find_optimizer(o.optimizer)) {
    fail_option("optimizer", o.optimizer,
                "adamw, adamw_optimi, stableadamw, adamw8bit, adamw8bit_kahan, adafactor or sgd");
  }
  if (!find_weight_format(o.weights)) {
    fail_option("weights", o.weights, joined(weight_format_names()));
  }
  if (o.timesteps != "logit_normal" && o.timesteps != "uniform") {
    fail_option("timesteps", o.timesteps, "logit_normal or uniform");
  }
}

void check_batches(const std::vector<v1::Batch>& batches) {
  if (batches.empty()) fail(ErrorCode::usage, "set_batches: there is at least one kind of step");
  for (const v1::Batch& b : batches) {
    if (b.empty() || b.size() > kMaxSamples) {
      fail(ErrorCode::usage,
           fmt::format("set_batches: a batch of {} samples, expected 1 to 1024", b.size()));
    }
    for (const v1::LatentSize& z : b) {
      const auto side = [](std::int64_t n) { return n >= 1 && n <= kMaxSide; };
      if (!side(z.frames) || !side(z.height) || !side(z.width) || z.height % 2 || z.width % 2 ||
          z.frames * z.height > kMaxCells / z.width) {
        fail(ErrorCode::usage, fmt::format("set_batches: a latent of {} x {} x {}, expected frames "
                                           "from 1 on and an even height and width",
                                           z.frames, z.height, z.width));
      }
    }
  }
}

void apply(const Settings& s, train::PreparedRun& run) {
  if (s.batches.empty()) {
    fail(ErrorCode::usage, "set_batches() comes before plan(), start(), step() and predict()",
         {{"set_batches({{{.frames = 6, .height = 64, .width = 64}}})",
           "steps of one sample of that size"}});
  }
  run.config = config_of(s.training);
  fit::Request& r = run.request;
  wan::DitJob job = {.config = wan::job_of(r).dit.config, .mode = mode_of(s.training.method)};
  for (const v1::Batch& b : s.batches) job.batches.push_back(batch_of(b));
  if (job.mode == wan::Mode::infer) {
    job.batches = single_samples(job.batches);
    job.adapters_in_inference = !s.training.init_from.empty();
  } else {
    job.predict_batches = single_samples(job.batches);
    job.noising = wan::Noising::recorded;
    job.record_update = true;
  }
  job.format = *find_weight_format(s.training.weights);
  job.lora.rank = s.training.rank;
  job.lora.alpha = static_cast<float>(s.training.alpha > 0 ? s.training.alpha
                                                           : static_cast<double>(s.training.rank));
  job.lora.dropout = s.training.dropout;
  job.optimizer = run.config.optimizer;
  job.max_grad_norm = s.training.max_grad_norm;
  const train::RunTarget target = train::this_machine(s.machine);
  job.precision = precision_on(target.backend.device);
  wan::job_of(r).dit = std::move(job);
  r.profile = target.profile;
  r.backend = target.backend;
  r.budget = train::resolve_budget(target, s.machine);
  r.switches.checkpointing = s.checkpointing;
  r.switches.offloading = s.offloading;
  r.other_lines = {{"library", kLibraryBytes, "pieces of files being written"}};
  run.title = fmt::format("{}, {}", wan::job_of(r).dit.config.name,
                          wan::job_of(r).dit.mode == wan::Mode::lora
                              ? fmt::format("LoRA rank {}", s.training.rank)
                              : std::string(name_of(wan::job_of(r).dit.mode)));
  run.shapes = shapes_text(wan::job_of(r).dit.batches);
}

std::string settings_hash(const Settings& s) {
  const v1::TrainingOptions& o = s.training;
  return fmt::format("{:016x}",
                     hash_of(fmt::format("{} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {}",
                                         static_cast<int>(o.method), o.rank, o.alpha, o.dropout,
                                         o.optimizer, o.beta1, o.beta2, o.eps, o.weight_decay,
                                         o.ema_decay.value_or(-1), o.max_grad_norm, o.weights,
                                         o.timesteps, o.shift, o.min_t, o.max_t, o.time_offset)));
}

v1::MemoryUse public_memory(const MemoryNumbers& m) {
  return {.device = m.device.count, .host = m.host.count, .disk = m.disk.count, .ram = m.ram.count};
}

namespace {

v1::MemoryUse allowed_by(const ::ballast::Budget& b) {
  return {.device = b.gpu.count, .host = b.host.count, .disk = b.disk.count, .ram = b.host.count};
}

}  // namespace

v1::Plan accepted(const train::PreparedRun& run, const fit::PlannedRun& planned) {
  const PlanTitle title = train::title_of(run);
  const PlanView view = train::view_of(run.request, planned);
  return {.fits = true,
          .planned = public_memory(train::planned_memory(run.request, planned)),
          .allowed = allowed_by(run.request.budget),
          .seconds_per_step = planned.seconds_per_step(),
          .policy = view.policy_text,
          .text = plan_table(title, view, {.details = true}),
          .json = plan_json(title, view),
          .advice = {}};
}

v1::Plan refused(const train::PreparedRun& run, const Refusal& refusal,
                 const std::vector<fit::Change>& changes) {
  const PlanTitle title = train::title_of(run);
  const std::vector<PlannedChange> advice = try_changes(run.request, refusal, changes);
  v1::Plan p = {
      .fits = false,
      .planned = {.device = refusal.needed[0].count,
                  .host = refusal.needed[1].count,
                  .disk = refusal.needed[2].count},
      .allowed = allowed_by(run.request.budget),
      .seconds_per_step = 0,
      .policy = refusal.policy,
      .text = fit::refusal_text(refusal, title, {.policy_given = run.request.policy.has_value()}) +
              "\n",
      .json = refusal_json(title, refusal, advice),
      .advice = {}};
  p.planned.ram = p.planned.host;
  if (title.shared_ram) p.planned.ram += p.planned.device;
  for (const PlannedChange& c : advice)
    p.advice.push_back({c.text, effect_of(c, title.shared_ram)});
  return p;
}

namespace {

// Where only the RAM is named it bounds the device arena as well, now and after the change.
void add_budgets(const Settings& s, const train::PreparedRun& run, const Refusal& refusal,
                 std::vector<fit::Change>& all) {
  const auto word = [](Tier t, std::uint64_t megabytes) {
    const char* field = t == Tier::device ? "gpu" : t == Tier::host ? "ram" : "disk";
    return fmt::format("set_budget({{.{} = {}'000'000}})", field, megabytes);
  };
  const bool ram_bounds_all = !s.machine.gpu && run.request.backend.device == Device::cpu;
  for (fit::Change& c : fit::larger_budgets(refusal, ram_bounds_all, word)) {
    all.push_back(std::move(c));
  }
}

}  // namespace

std::vector<fit::Change> setting_changes(const Settings& s, const train::PreparedRun& run,
                                         const Refusal& refusal) {
  const fit::Request& request = run.request;
  std::vector<fit::Change> all;
  const auto add = [&](std::string text, std::function<void(fit::Request&)> apply_to) {
    all.push_back({std::move(text), std::move(apply_to)});
  };
  if (s.checkpointing == fit::Choice::off) {
    add("enable_gradient_checkpointing()",
        [](fit::Request& r) { r.switches.checkpointing = fit::Choice::on; });
  }
  if (s.offloading == fit::Choice::off) {
    add("enable_offloading()", [](fit::Request& r) { r.switches.offloading = fit::Choice::on; });
  }
  if (request.switches.any()) {
    add("leave_memory_to_the_planner()", [](fit::Request& r) { r.switches = {}; });
  }
  add_budgets(s, run, refusal, all);
  if (wan::job_of(request).dit.mode != wan::Mode::full &&
      !is_fp8(wan::job_of(request).dit.format)) {
    add("set_training({.weights = \"fp8\"})",
        [](fit::Request& r) { wan::job_of(r).dit.format = WeightFormat::f8_e4m3; });
  }
  if (wan::job_of(request).dit.mode == wan::Mode::lora && s.training.rank > 1) {
    add(fmt::format("set_training({{.rank = {}}})", s.training.rank / 2),
        [](fit::Request& r) { wan::job_of(r).dit.lora.rank /= 2; });
  }
  std::int64_t frames = 1;
  for (const wan::Batch& b : wan::job_of(request).dit.batches) {
    for (const wan::LatentSize& z : b.latents) frames = std::max(frames, z.frames);
  }
  if (frames > 1) {
    add(fmt::format("set_batches with at most {} frames", frames / 2),
        [most = frames / 2](fit::Request& r) {
          for (auto* batches : {&wan::job_of(r).dit.batches, &wan::job_of(r).dit.predict_batches}) {
            for (wan::Batch& b : *batches) {
              for (wan::LatentSize& z : b.latents) z.frames = std::min(z.frames, most);
            }
          }
        });
  }
  return all;
}

}  // namespace ballast::library
