#include <fmt/format.h>

#include <tuple>

#include "train/config/config_dialects.h"
#include "train/config/config_preview.h"
#include "train/config/enum_names.h"
#include "train/config/key_values.h"

namespace ballast::train {
namespace {

using Takes = FlagTable::Takes;

struct Task {
  double boundary = 0;  // of the two-expert tasks
  bool supported = true;
  bool takes_image = false;
};
constexpr std::array<EnumName<Task>, 10> kTasks = {{
    {"t2v-14B", {}},
    {"t2v-1.3B", {}},
    {"i2v-14B", {0, false}},
    {"t2i-14B", {}},
    {"flf2v-14B", {0, false}},
    {"t2v-1.3B-FC", {0, false}},
    {"t2v-14B-FC", {0, false}},
    {"i2v-14B-FC", {0, false}},
    {"t2v-A14B", {0.875, true}},
    {"i2v-A14B", {0.9, true, true}},
}};
constexpr std::array<EnumName<TimestepSampling>, 6> kMusubiSamplings = {{
    {"sigma", TimestepSampling::sigma},
    {"uniform", TimestepSampling::uniform},
    {"sigmoid", TimestepSampling::sigmoid},
    {"shift", TimestepSampling::shift},
    {"flux_shift", TimestepSampling::flux_shift},
    {"logsnr", TimestepSampling::logsnr},
}};
constexpr std::array<EnumName<Weighting>, 5> kWeightings = {{
    {"none", Weighting::none},
    {"logit_normal", Weighting::logit_normal},
    {"mode", Weighting::mode},
    {"cosmap", Weighting::cosmap},
    {"sigma_sqrt", Weighting::sigma_sqrt},
}};
constexpr std::array<EnumName<DType>, 3> kMixed = {
    {{"no", DType::f32}, {"fp16", DType::f16}, {"bf16", DType::bf16}}};
constexpr std::array<EnumName<DType>, 4> kSaved = {
    {{"float", DType::f32}, {"fp32", DType::f32}, {"fp16", DType::f16}, {"bf16", DType::bf16}}};
// Flags whose text goes into LoRA files, and its key there.
constexpr std::pair<std::string_view, std::string_view> kMetadata[] = {
    {"training_comment", "ss_training_comment"}, {"metadata_title", "modelspec.title"},
    {"metadata_author", "modelspec.author"},     {"metadata_description", "modelspec.description"},
    {"metadata_license", "modelspec.license"},   {"metadata_tags", "modelspec.tags"},
    {"metadata_reso", "modelspec.resolution"},   {"metadata_arch", "modelspec.architecture"},
};

double boundary_of(const Setting& s) {
  const double value = s.number(), boundary = value > 1 ? value / 1000 : value;
  if (!(value >= 0 && boundary <= 1)) s.fail_value("0 to 1, or 2 to 1000");
  return boundary;
}

std::string network_module_of(const Setting& s) {
  if (s.text() != "networks.lora_wan" && s.text() != "networks.lora") {
    s.fail_value("networks.lora_wan (LoHa and LoKr are not supported)");
  }
  return s.text();
}

// 100, 0.1 or 10%.
struct StepsOrShare {
  std::int64_t steps = 0;
  std::optional<double> share;
};
StepsOrShare steps_of(const Setting& s) {
  Setting plain = s;
  const bool percent = s.text().ends_with('%');
  if (percent) plain.values.front().pop_back();
  const double value = percent ? plain.number() / 100 : plain.number();
  if (value < 0 || (percent && value > 1)) s.fail_value("steps or a share of them");
  if (percent || (value > 0 && value < 1)) return {.steps = 0, .share = value};
  return {.steps = plain.integer(), .share = std::nullopt};
}

class MusubiReader {
 public:
  MusubiReader(const std::string& source, ConfigUse use)
      : table_(&c_.notes), find_path_(source, &c_.notes), use_(use) {
    c_.source = source;
    c_.dialect = Dialect::musubi;
    c_.method = Method::lora;
    c_.adapter.rank = 4;
    c_.adapter.alpha = 1;
    c_.adapter.dtype = DType::f32;  // trained in float32 there, whatever the precision is
    c_.save_dtype = DType::f32;
    c_.lora_format = LoraFormat::kohya;
    c_.evaluate_before_first_step = false;
    c_.schedule.style = ScheduleStyle::transformers;
    c_.schedule.learning_rate = 2e-6;
    c_.timesteps.sampling = TimestepSampling::sigma;
    c_.timesteps.shift = 1;
    c_.output_name = "last";
  }

  // The flags that have an effect.
  template <class Self, class Visit>
  static void fields(Self& r, Visit&& visit) {
    TrainConfig& c = r.c_;
    model_fields(r, c, visit);
    run_fields(r, c, visit);
    optimizer_fields(r, c.schedule, visit);
    timestep_fields(r, c.timesteps, visit);
    network_fields(r, c.adapter, visit);
    visit("sample_every_n_steps", c.preview.every.steps, "draw previews every so many steps", 1);
    visit("sample_every_n_epochs", c.preview.every.epochs, "or every so many epochs", 1);
    visit("sample_at_first", c.preview.at_first, "and before the first step");
    visit("sample_prompts", r.sample_prompts_,
          "file of their prompts, a line each: TEXT --w 832 --h 480 --f 81 --d 7 --s 30 --l 5");
    visit("no_metadata", Negated{c.write_metadata}, "write none into LoRA files");
  }

  void declare(FlagTable& t) {
    t.add_fields(*this);
    for (const auto& [flag, key] : kMetadata) {
      t.add(flag, Takes::one, "written into LoRA files",
            [this, key = std::string(key)](const Setting& s) {
              c_.metadata.emplace_back(key, s.text());
            });
    }
    declare_musubi_ignored(t);
  }

  TrainConfig read(std::span<const Setting> settings) {
    CommonFlags common;
    common.declare(table_);
    declare(table_);
    table_.read(settings);
    finish_model(settings);
    finish_run();
    finish_previews();
    finish_schedule();
    finish_optimizer();
    check_warmup(last_named(settings, "lr_warmup_steps"), adafactor_schedule(), c_);
    finish_network();
    read_schedule_args(schedule_args_, c_.schedule);
    common.apply(c_);
    return std::move(c_);
  }

 private:
  template <class Visit>
  static void model_fields(MusubiReader& r, TrainConfig& c, Visit& visit) {
    visit("task", r.task_, "the model, for example t2v-A14B or i2v-A14B", kTasks);
    visit("dit", c.model.checkpoint, "the transformer; the low-noise one of two");
    visit("dit_high_noise", c.model.high_noise_transformer, "the high-noise transformer");
    visit("timestep_boundary", c.model.boundary, "between the experts, 0 to 1 or in thousandths",
          boundary_of);
    visit("mixed_precision", c.model.dtype, "no, fp16 or bf16", kMixed);
    visit("fp8_base", r.fp8_base_, "keep frozen matrices in float8_e4m3fn");
    visit("fp8_scaled", r.fp8_scaled_, "with scales; needs --fp8_base");
    visit("dataset_config", c.dataset.config, "the dataset's TOML or JSON");
    visit("vae", c.caching.vae, "the VAE that `ballast cache` encodes with");
    visit("t5", c.caching.text_encoder, "its text encoder");
    visit("tokenizer", c.caching.tokenizer, "its tokenizer, where it is not beside --t5");
    visit("i2v", c.caching.image_to_video, "cache for image-to-video models (without --dit)");
    visit("batch_size", c.caching.batch_size,
          "captions that `ballast cache` encodes at once, at most", 1);
    visit("blocks_to_swap", c.memory.blocks_to_swap, "a hint: blocks whose weights are streamed");
    visit("gradient_checkpointing", r.recompute_, "compute activations again in backward");
    visit("gradient_checkpointing_cpu_offload", r.offload_, "and keep block inputs in RAM");
  }

  template <class Visit>
  static void run_fields(MusubiReader& r, TrainConfig& c, Visit& visit) {
    visit("max_train_steps", r.max_train_steps_, "optimizer steps (1600)", 1);
    visit("max_train_epochs", r.max_train_epochs_, "epochs; wins over steps", 1);
    visit("gradient_accumulation_steps", c.gradient_accumulation, "micro-batches per step", 1);
    visit("max_grad_norm", c.max_grad_norm, "clip gradients to this norm; 0: do not");
    visit("output_name", c.output_name, "of the files");
    visit("save_every_n_epochs", c.save.epochs, "write the LoRA every n epochs", 1);
    visit("save_every_n_steps", c.save.steps, "write the LoRA every n steps", 1);
    visit("save_state", r.save_state_, "write a checkpoint whenever the LoRA is written");
    visit("save_precision", c.save_dtype, "float, fp32, fp16 or bf16", kSaved);
  }

  template <class Visit>
  static void optimizer_fields(MusubiReader& r, ScheduleOptions& o, Visit& visit) {
    visit("optimizer_type", r.optimizer_, "AdamW, AdamW8bit, Adafactor or StableAdamW",
          musubi_optimizer);
    visit("optimizer_args", r.optimizer_args_, "key=value ...", Takes::many);
    visit("learning_rate", o.learning_rate, "the highest one (2e-6)");
    visit("lr_scheduler", r.lr_scheduler_, "constant, cosine, linear, ...");
    visit("lr_warmup_steps", r.warmup_, "steps, or a share of them: 100, 0.1, 10%", steps_of);
    visit("lr_decay_steps", r.decay_, "steps, or a share of them: 100, 0.1, 10%", steps_of);
    visit("lr_scheduler_num_cycles", o.cycles, "of cosine_with_restarts");
    visit("lr_scheduler_power", o.power, "of polynomial");
    visit("lr_scheduler_timescale", o.timescale, "of inverse_sqrt");
    visit("lr_scheduler_min_lr_ratio", o.min_rate_ratio, "lowest rate over the highest");
    visit("lr_scheduler_args", r.schedule_args_, "step_rules=1:100,0.1 of piecewise_constant",
          Takes::many);
  }

  template <class Visit>
  static void timestep_fields(MusubiReader& r, TimestepOptions& o, Visit& visit) {
    visit("timestep_sampling", o.sampling, "sigma, uniform, sigmoid, shift, ...", kMusubiSamplings);
    visit("discrete_flow_shift", o.shift, "of shift sampling");
    visit("sigmoid_scale", o.sigmoid_scale, "of sigmoid and shift sampling");
    visit("weighting_scheme", o.weighting, "none, logit_normal, mode, cosmap or sigma_sqrt",
          kWeightings);
    visit("logit_mean", o.logit_mean, "of logit_normal and logsnr", -1e9);
    visit("logit_std", o.logit_std, "of logit_normal and logsnr");
    visit("mode_scale", o.mode_scale, "of mode", -1e9);
    visit("min_timestep", r.min_timestep_, "0 to 1000");
    visit("max_timestep", r.max_timestep_, "0 to 1000");
    visit("preserve_distribution_shape", o.preserve_shape, "draw again instead of squeezing");
    visit("num_timestep_buckets", r.strata_, "stratified timesteps");
  }

  template <class Visit>
  static void network_fields(MusubiReader& r, AdapterConfig& a, Visit& visit) {
    visit("network_module", r.network_module_, "networks.lora_wan", network_module_of);
    visit("network_dim", a.rank, "LoRA rank (4)", integer_in(1, 65536, "1 to 65536"));
    visit("network_alpha", a.alpha, "LoRA alpha (1); 0: the rank");
    visit("network_dropout", a.hidden_dropout, "on what A makes of a LoRA's input",
          number_where([](double p) { return p >= 0 && p < 1; }, "0 to less than 1"));
    visit(
        "network_args", r.network_args_,
        "loraplus_lr_ratio=, exclude_patterns=, include_patterns=, rank_dropout=, module_dropout=",
        Takes::many);
    visit("network_weights", a.init_from, "begin with this LoRA");
    visit("base_weights", r.base_weights_, "LoRAs merged into the model first");
    visit("base_weights_multiplier", r.base_multipliers_, "their strengths");
    visit("dim_from_weights", r.dim_from_weights_, "rank and alpha of the LoRA to begin with");
    visit("scale_weight_norms", a.max_norm, "largest norm of a LoRA pair's product (no limit)",
          number_where([](double norm) { return norm > 0; }, "a number above 0"));
  }

  // The last one wins.
  static const Setting* last_named(std::span<const Setting> settings, std::string_view name) {
    for (auto s = settings.rbegin(); s != settings.rend(); ++s) {
      if (s->name == name) return &*s;
    }
    return nullptr;
  }

  void finish_model(std::span<const Setting> settings) {
    ModelConfig& m = c_.model;
    const auto named = [&](std::string_view name) { return last_named(settings, name); };
    if (!task_.supported) {
      const Setting& s = *named("task");
      fail(s.code, fmt::format("{}: {} is not supported: image cross-attention and control inputs "
                               "are not part of this program",
                               s.where, printable(s.text(), 40)));
    }
    for (const std::string_view name : {"dataset_config", "dit", "output_dir"}) {
      const bool needed = use_ == ConfigUse::train || name == "dataset_config";
      if (needed && named(name) == nullptr) {
        fail(c_.source.empty() ? ErrorCode::usage : ErrorCode::input,
             fmt::format("--{} is missing", name));
      }
    }
    if (const Setting* s = named("task")) {
      m.task = fmt::format("{} {}", s->where, s->text());
      m.task_takes_image = task_.takes_image;
    }
    m.checkpoint = find_path_.find("dit", m.checkpoint);
    c_.caching.vae = find_path_.find("vae", c_.caching.vae);
    c_.caching.text_encoder = find_path_.find("t5", c_.caching.text_encoder);
    c_.caching.tokenizer = find_path_.find("tokenizer", c_.caching.tokenizer);
    c_.dataset = {"train", find_path_.find("dataset_config", c_.dataset.config),
                  named("dataset_config")->where};
    if (m.boundary == 0) m.boundary = task_.boundary;
    if (!m.high_noise_transformer.empty()) {
      m.high_noise_transformer = find_path_.find("dit_high_noise", m.high_noise_transformer);
      m.transformer = m.checkpoint;
      m.experts = Experts::both;
      c_.notes.push_back(
          "--dit_high_noise: each expert gets a LoRA of its own and two files are written; "
          "musubi-tuner trains one LoRA on both");
      if (m.boundary == 0) {
        fail(named("dit_high_noise")->code,
             "--dit_high_noise: needs --task t2v-A14B or i2v-A14B, or --timestep_boundary");
      }
    }
    if (fp8_scaled_ && !fp8_base_) {
      fail(named("fp8_scaled")->code, "--fp8_scaled needs --fp8_base, as in musubi-tuner");
    }
    if (fp8_base_) m.transformer_dtype = DType::f8_e4m3;
    if (fp8_scaled_) {
      m.transformer_scales = true;
      c_.notes.push_back("--fp8_scaled: one scale per row of a matrix, not per 64 inputs");
    }
    if (base_multipliers_.size() > base_weights_.size()) {
      fail(named("base_weights_multiplier")->code,
           fmt::format("--base_weights_multiplier: {} strengths for {} files",
                       base_multipliers_.size(), base_weights_.size()));
    }
    for (std::size_t i = 0; i < base_weights_.size(); ++i) {
      double strength = 1;
      if (i < base_multipliers_.size()) {
        Setting one = *named("base_weights_multiplier");
        one.values = {base_multipliers_[i]};
        strength = one.number();
      }
      m.base_loras.emplace_back(find_path_.find("base_weights", base_weights_[i]), strength);
    }
    if (strata_ > 1'000'000) fail(named("num_timestep_buckets")->code, "too many timestep buckets");
    if (!(min_timestep_ < max_timestep_ && max_timestep_ <= 1000)) {
      const Setting* s =
          named(max_timestep_ > 1000 || named("min_timestep") == nullptr ? "max_timestep"
                                                                         : "min_timestep");
      fail(s->code, fmt::format("{}: expected 0 <= min_timestep < max_timestep <= 1000, found {} "
                                "and {}",
                                s->where, min_timestep_, max_timestep_));
    }
  }

  void finish_previews() {
    PreviewConfig& p = c_.preview;
    if (sample_prompts_.empty()) {
      if (p.every.steps || p.every.epochs || p.at_first) {
        c_.notes.push_back("no previews are drawn without --sample_prompts");
      }
      return;
    }
    if (!p.every.steps && !p.every.epochs && !p.at_first) {
      c_.notes.push_back(
          "--sample_prompts: no previews are drawn without --sample_every_n_steps, "
          "--sample_every_n_epochs or --sample_at_first");
      return;
    }
    // What that trainer draws where a line says nothing.
    PreviewClip usual;
    usual.width = usual.height = 256;
    usual.frames = 1;
    usual.shift = 14.5;
    p.clips = preview_clips(find_path_.find("sample_prompts", sample_prompts_), usual);
    find_images(p.clips, "sample_prompts", find_path_);
  }

  void finish_run() {
    c_.epochs = max_train_epochs_.value_or(kNoEpochLimit);
    if (!max_train_epochs_) c_.max_steps = max_train_steps_;
    c_.eval_gradient_accumulation = 1;
    if (save_state_) c_.checkpoint = c_.save;
    if (recompute_) c_.memory.checkpointing = Checkpointing::recompute;
    if (offload_) c_.memory.checkpointing = Checkpointing::recompute_offloaded;
    TimestepOptions& o = c_.timesteps;
    o.min_t = static_cast<double>(min_timestep_) / 1000;
    o.max_t = static_cast<double>(max_timestep_) / 1000;
    o.flux_shift = o.sampling == TimestepSampling::flux_shift;
    o.strata = static_cast<int>(strata_);
    o.time_offset = 1;  // not for `sigma`, whose table holds the times themselves
    if (o.sampling == TimestepSampling::sigma) o.time_offset = 0;
  }

  bool adafactor_schedule() const {
    return !lr_scheduler_.name.empty() && lr_scheduler_.text().starts_with("adafactor");
  }

  void finish_schedule() {
    ScheduleOptions& o = c_.schedule;
    o.warmup_steps = warmup_.steps, c_.warmup_share = warmup_.share;
    o.decay_steps = decay_.steps, c_.decay_share = decay_.share;
    if (lr_scheduler_.name.empty() || adafactor_schedule()) return;
    const auto kind = parse_enum(kScheduleNames, lr_scheduler_.text());
    if (!kind) lr_scheduler_.fail_value(one_of(kScheduleNames, lr_scheduler_.text()));
    o.kind = *kind;
  }

  void finish_optimizer() {
    OptimizerOptions& o = c_.optimizer;
    o = optimizer_defaults(optimizer_, trained_dtype(c_));
    read_optimizer_args(optimizer_args_, o);
    const bool own_rate = optimizer_ == OptimizerKind::adafactor && o.relative_step;
    if (adafactor_schedule() && !own_rate) {
      fail(lr_scheduler_.code,
           fmt::format("{}: \"adafactor\" needs --optimizer_type Adafactor with relative_step=True",
                       lr_scheduler_.where));
    }
  }

  void finish_network() {
    AdapterConfig& a = c_.adapter;
    if (dim_from_weights_) {
      if (a.init_from.empty()) {
        fail(ErrorCode::usage, "--dim_from_weights needs --network_weights FILE");
      }
      a.rank = 0;  // that of the file
    }
    a.init_from = find_path_.find("network_weights", a.init_from);
    a.exclude_is_regex = true;
    const KeyValues args(
        network_args_, {"loraplus_lr_ratio", "exclude_patterns", "include_patterns", "rank_dropout",
                        "module_dropout", "verbose"});
    a.up_rate_ratio = args.number("loraplus_lr_ratio", 1e-9).value_or(1);
    a.exclude = args.strings("exclude_patterns");
    a.include = args.strings("include_patterns");
    const auto share = [&](std::string_view key) {
      const double p = args.number(key, 0).value_or(0);
      if (!(p < 1)) args.fail_value(key, "0 to less than 1");
      return p;
    };
    a.rank_dropout = share("rank_dropout");
    a.module_dropout = share("module_dropout");
    if (args.has("verbose")) c_.notes.push_back(network_args_.where + ": verbose has no effect");
  }

  TrainConfig c_;
  FlagTable table_;
  PathFinder find_path_;
  ConfigUse use_;
  Task task_;
  bool fp8_base_ = false, fp8_scaled_ = false, recompute_ = false, offload_ = false,
       save_state_ = false, dim_from_weights_ = false;
  std::int64_t max_train_steps_ = 1600, min_timestep_ = 0, max_timestep_ = 1000, strata_ = 0;
  std::optional<std::int64_t> max_train_epochs_;
  OptimizerKind optimizer_ = OptimizerKind::adamw;
  Setting optimizer_args_, network_args_, lr_scheduler_, schedule_args_;
  StepsOrShare warmup_, decay_;
  std::vector<std::string> base_weights_, base_multipliers_;
  std::string network_module_, sample_prompts_;
};

}  // namespace

void describe_musubi(FlagTable& table) { MusubiReader("", ConfigUse::train).declare(table); }

TrainConfig read_musubi(const std::string& source, std::span<const Setting> settings,
                        ConfigUse use) {
  return MusubiReader(source, use).read(settings);
}

}  // namespace ballast::train
