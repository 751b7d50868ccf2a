#include "train/run/config_hash.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "core/path_kind.h"
#include "core/random.h"
#include "io/toml_table.h"
#include "memory/text_file.h"
#include "train/run/run_summary.h"

namespace ballast::train {
namespace {

// Keys of dataset files that say where things are.
constexpr std::string_view kPathKeys[] = {"path",
                                          "mask_path",
                                          "default_mask_file",
                                          "control_path",
                                          "image_directory",
                                          "image_jsonl_file",
                                          "video_directory",
                                          "video_jsonl_file",
                                          "cache_directory",
                                          "control_directory"};

class Facts {
 public:
  template <class T>
  void add(std::string_view key, const T& value) {
    if constexpr (std::is_enum_v<T>) {
      line(fmt::format("{}={}", key, static_cast<int>(value)));
    } else {
      line(fmt::format("{}={}", key, value));
    }
  }
  template <class T>
  void add(std::string_view key, const std::optional<T>& value) {
    if (value) add(key, *value);
  }
  void line(std::string_view text) { hash_ = hash_of(fmt::format("{:x} {}", hash_, text)); }
  std::string text() const { return fmt::format("{:016x}", hash_); }

 private:
  std::uint64_t hash_ = 0;
};

// Of its tensors and some of their numbers; where a resumed run does without the file, of nothing.
std::string lora_hash(const std::string& path) {
  if (!path_exists(path)) return "";
  const WeightFiles file = WeightFiles::open(path, DiskMode::buffered);
  return model_hash(std::span(&file, 1));
}

void add_model(const TrainConfig& c, Facts& f) {
  f.add("method", c.method);
  f.add("experts", c.model.experts);
  f.add("dtype", name_of(c.model.dtype));
  if (c.model.transformer_dtype) f.add("transformer_dtype", name_of(*c.model.transformer_dtype));
  f.add("transformer_scales", c.model.transformer_scales);
  f.add("boundary", c.model.boundary);
  for (const auto& [file, strength] : c.model.base_loras) {
    f.add("base_lora", fmt::format("{} {}", strength, lora_hash(file)));
  }
  f.add("fp8_matmul", c.memory.fp8_matmul);
  if (const auto& v = c.vae) {
    f.add("vae", fmt::format("{} {} {}", static_cast<int>(v->reconstruction), v->kl_weight,
                             v->train_encoder));
  }
  if (const auto& d = c.dmd2) {
    f.add("dmd2", fmt::format("{} {} {} {} {} {} {} {} {} {} {}", fmt::join(d->steps, ","),
                              d->shift, d->guidance, d->every, d->critic_rate,
                              static_cast<int>(d->rollout), static_cast<int>(d->renoise), d->min_t,
                              d->max_t, d->regression_steps, d->teacher_steps));
  }
  if (const auto& s = c.student) {
    f.add("student", fmt::format("{} {} {} {} {}", s->layers, s->dim, s->ffn_dim, s->file.empty(),
                                 s->guidance));
  }
  if (c.method != Method::lora) return;
  const AdapterConfig& a = c.adapter;
  f.add("rank", a.rank);
  f.add("alpha", a.alpha > 0 ? a.alpha : static_cast<double>(a.rank));
  f.add("dropout", a.dropout);
  if (a.hidden_dropout > 0 || a.rank_dropout > 0 || a.module_dropout > 0) {
    f.add("drops", fmt::format("{} {} {}", a.hidden_dropout, a.rank_dropout, a.module_dropout));
  }
  f.add("adapter_dtype", name_of(a.dtype));
  f.add("exclude", fmt::format("{} {}", a.exclude_is_regex, a.exclude));
  f.add("include", fmt::format("{}", a.include));
  if (!a.init_from.empty()) f.add("init_from", lora_hash(a.init_from));
  f.add("up_rate_ratio", a.up_rate_ratio);
  if (a.max_norm > 0) f.add("max_norm", a.max_norm);  // runs without one keep their hash
}

void add_optimizer(const OptimizerOptions& o, Facts& f) {
  f.add("optimizer", name_of(o.kind));
  f.add("betas", fmt::format("{} {} {}", o.beta1, o.beta2, o.momentum));
  f.add("eps", fmt::format("{} {} {}", o.eps, o.eps_rows, o.eps_scale));
  f.add("weight_decay", o.weight_decay);
  f.add("rounding", fmt::format("{} {}", static_cast<int>(o.rounding), o.kahan_unasked));
  f.add("state_dtype", name_of(o.state_dtype));
  f.add("adafactor", fmt::format("{} {} {} {} {}", o.clip_threshold, o.decay_rate,
                                 o.scale_parameter, o.relative_step, o.warmup_init));
  f.add("stabilize", o.stabilize);
  f.add("ema_decay", o.ema_decay);
}

void add_schedule(const ScheduleOptions& s, Facts& f) {
  f.add("schedule", name_of(s.kind));
  f.add("style", s.style);
  f.add("learning_rate", s.learning_rate);
  f.add("warmup_steps", s.warmup_steps);
  const bool endless = s.kind == ScheduleKind::constant || s.kind == ScheduleKind::inverse_sqrt ||
                       s.kind == ScheduleKind::constant_with_warmup ||
                       s.kind == ScheduleKind::piecewise_constant;
  if (!endless) {
    f.add("length", fmt::format("{} {} {}", s.total_steps, s.decay_steps, s.steps_per_epoch));
  }
  for (const auto& p : s.pieces) f.add("piece", fmt::format("{} {}", p.until, p.factor));
  f.add("curve", fmt::format("{} {} {} {} {}", s.min_rate, s.min_rate_ratio, s.cycles, s.power,
                             s.timescale));
}

void add_objective(const TrainConfig& c, Facts& f) {
  const TimestepOptions& t = c.timesteps;
  f.add("sampling", t.sampling);
  f.add("shift", fmt::format("{} {} {}", t.sigmoid_scale, t.shift, t.flux_shift));
  f.add("range", fmt::format("{} {} {}", t.min_t, t.max_t, t.preserve_shape));
  f.add("weighting", fmt::format("{} {} {} {}", static_cast<int>(t.weighting), t.logit_mean,
                                 t.logit_std, t.mode_scale));
  f.add("time", fmt::format("{} {} {}", t.time_offset, t.strata, name_of(t.sigma_dtype)));
  f.add("loss", fmt::format("{} {}", static_cast<int>(c.loss), c.loss_delta));
  f.add("accumulation", step_accumulation(c));
  // Runs with one column keep their hash.
  if (c.parallel.column_count() > 1) f.add("columns", c.parallel.column_count());
  f.add("max_grad_norm", c.max_grad_norm);
  f.add("seed", c.seed);
  f.add("uncond_fraction", c.uncond_fraction);
  f.add("on_nan", c.on_nan);
  f.add("save_dtype", name_of(c.save_dtype));
  f.add("lora_format", c.lora_format);
  f.add("clip_mode", c.video_clip_mode);
}

// The file line by line, without comments and places: what it does with the samples that it names.
void add_dataset_file(const std::string& path, Facts& f) {
  const auto trimmed = [](std::string_view s, std::string_view of = " \t\r") {
    const auto first = s.find_first_not_of(of);
    if (first == std::string_view::npos) return std::string_view();
    return s.substr(first, s.find_last_not_of(of) - first + 1);
  };
  if (path.empty() || is_folder(path)) return;
  LineReader reader = LineReader::open(path, {.file_bytes = TomlFile::kMaxBytes});
  for (FileLine line; reader.next(line);) {
    const std::string_view text = trimmed(line.text);
    if (text.empty() || text.front() == '#') continue;
    const std::string_view key = trimmed(text.substr(0, text.find_first_of("=:")), " \t\"{[,");
    if (std::ranges::find(kPathKeys, key) != std::end(kPathKeys)) continue;
    f.line(text);
  }
}

void add_dataset(const data::Dataset& d, Facts& f) {
  for (const data::Bucket& b : d.buckets()) {
    f.add("bucket", fmt::format("{} {} {} {} {} {}", b.shape.channels, b.shape.frames,
                                b.shape.height, b.shape.width, b.micro_batch, b.items));
  }
  for (const data::Sample& s : d.samples()) f.add("sample", s.id);
}

}  // namespace

std::string config_hash(const TrainConfig& c, const ScheduleOptions& schedule,
                        const data::Dataset& dataset) {
  Facts f;
  add_model(c, f);
  add_optimizer(c.optimizer, f);
  add_schedule(schedule, f);
  add_objective(c, f);
  add_dataset_file(c.dataset.config, f);
  add_dataset(dataset, f);
  return f.text();
}

}  // namespace ballast::train
