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
    c_.timesteps.shift = 1;
    c_.output_name = "last";
  }

  void declare(FlagTable& table) {
    declare_model(table);
    declare_memory(table);
    declare_run(table);
    declare_optimizer(table);
    declare_timesteps(table);
    declare_network(table);
    declare_rest(table);
    declare_musubi_ignored(table);
  }

  TrainConfig read(std::span<const Setting> settings) {
    CommonFlags common;
    common.declare(table_);
    declare(table_);
    table_.read(settings);
    finish_model(settings);
    finish_run();
    finish_previews();
    finish_optimizer();
    check_warmup(last_named(settings, "lr_warmup_steps"), !adafactor_schedule_.name.empty(), c_);
    finish_network();
    read_schedule_args(schedule_args_, c_.schedule);
    common.apply(c_);
    return std::move(c_);
  }

 private:
  void declare_model(FlagTable& t) {
    t.add("task", task_, "the model, for example t2v-A14B or i2v-A14B", kTasks);
    t.add("dit", c_.model.checkpoint, "the transformer; the low-noise one of two");
    t.add("dit_high_noise", c_.model.high_noise_transformer, "the high-noise transformer");
    t.add("timestep_boundary", Takes::one, "between the experts, 0 to 1 or in thousandths",
          [this](const Setting& s) {
            const double value = s.number();
            c_.model.boundary = value > 1 ? value / 1000 : value;
            if (!(value >= 0 && c_.model.boundary <= 1)) s.fail_value("0 to 1, or 2 to 1000");
          });
    t.add("mixed_precision", c_.model.dtype, "no, fp16 or bf16", kMixed);
    t.add("fp8_base", fp8_base_, "keep frozen matrices in float8_e4m3fn");
    t.add("fp8_scaled", fp8_scaled_, "with scales; needs --fp8_base");
    t.add("dataset_config", c_.dataset.config, "the dataset's TOML or JSON");
    t.ignore("offload_inactive_dit", Takes::nothing, "the plan decides where the other expert is");
    t.ignore("force_v2_1_time_embedding", Takes::nothing,
             "one time embedding per sample is always used; the values are the same");
    t.add("vae", c_.caching.vae, "the VAE that `ballast cache` encodes with");
    t.add("t5", c_.caching.text_encoder, "its text encoder");
    t.add("tokenizer", c_.caching.tokenizer, "its tokenizer, where it is not beside --t5");
    t.add("i2v", c_.caching.image_to_video, "cache for image-to-video models (without --dit)");
    t.add("batch_size", c_.caching.batch_size,
          "captions that `ballast cache` encodes at once, at most", 1);
    t.ignore("vae_dtype", Takes::one, "the VAE computes in bf16 on a GPU, in f32 on the CPU");
    t.ignore("clip", Takes::one, "only Wan2.1's image-to-video models have it");
    t.ignore("vae_cache_cpu", Takes::nothing, "where the VAE's memory is, is planned");
    t.ignore("fp8_t5", Takes::nothing, "the text encoder is streamed as it is stored");
    t.ignore("num_workers", Takes::one, "one reader decodes ahead of the encoder");
    t.ignore("skip_existing", Takes::nothing, "what is cached is always skipped");
    t.ignore("keep_cache", Takes::nothing, "cached files are never removed");
    t.ignore("disable_cudnn_backend", Takes::nothing, "a detail of PyTorch");
    for (const auto name : {"vae_chunk_size", "vae_spatial_tile_sample_min_size"}) {
      t.ignore(name, Takes::one, "where the VAE's memory is, is planned");
    }
    t.ignore("vae_tiling", Takes::nothing, "where the VAE's memory is, is planned");
    t.refuse("one_frame", Takes::nothing, "one-frame models are not supported");
    t.refuse("debug_mode", Takes::one, "a debugging aid that is not offered");
    for (const auto name :
         {"sdpa", "flash_attn", "flash3", "sage_attn", "xformers", "split_attn"}) {
      t.ignore(name, Takes::nothing, "there is one attention, whose memory does not grow with L^2");
    }
  }

  void declare_memory(FlagTable& t) {
    t.add("blocks_to_swap", c_.memory.blocks_to_swap, "a hint: blocks whose weights are streamed");
    t.add("gradient_checkpointing", recompute_, "compute activations again in backward");
    t.add("gradient_checkpointing_cpu_offload", offload_, "and keep block inputs in RAM");
    constexpr std::string_view kPlanned = "streaming is planned: exact-size slots, one direction";
    t.ignore("use_pinned_memory_for_block_swap", Takes::nothing, kPlanned);
    t.ignore("block_swap_h2d_only", Takes::nothing, kPlanned);
    t.ignore("block_swap_ring_size", Takes::one, kPlanned);
    t.ignore("disable_numpy_memmap", Takes::nothing, "weights are read, never mapped");
    t.ignore("max_data_loader_n_workers", Takes::one, "one reader works ahead");
    t.ignore("persistent_data_loader_workers", Takes::nothing, "one reader works ahead");
  }

  void declare_run(FlagTable& t) {
    t.add("max_train_steps", max_train_steps_, "optimizer steps (1600)", 1);
    t.add("max_train_epochs", max_train_epochs_, "epochs; wins over steps", 1);
    t.add("gradient_accumulation_steps", c_.gradient_accumulation, "micro-batches per step", 1);
    t.add("max_grad_norm", c_.max_grad_norm, "clip gradients to this norm; 0: do not");
    t.add("output_name", c_.output_name, "of the files");
    t.add("save_every_n_epochs", c_.save.epochs, "write the LoRA every n epochs", 1);
    t.add("save_every_n_steps", c_.save.steps, "write the LoRA every n steps", 1);
    t.add("save_state", save_state_, "write a checkpoint whenever the LoRA is written");
    t.add("save_precision", c_.save_dtype, "float, fp32, fp16 or bf16", kSaved);
    t.ignore("save_state_on_train_end", Takes::nothing, "the last state is always written");
    for (const auto name : {"save_last_n_epochs", "save_last_n_steps"}) {
      t.ignore(name, Takes::one, "LoRA files are never removed");
    }
    for (const auto name : {"save_last_n_epochs_state", "save_last_n_steps_state"}) {
      t.ignore(name, Takes::one, "--keep_checkpoints says how many stay");
    }
  }

  void declare_optimizer(FlagTable& t) {
    t.add("optimizer_type", Takes::one, "AdamW, AdamW8bit, Adafactor or StableAdamW",
          [this](const Setting& s) { optimizer_ = musubi_optimizer(s); });
    t.add("optimizer_args", Takes::many, "key=value ...",
          [this](const Setting& s) { optimizer_args_ = s; });
    t.add("learning_rate", c_.schedule.learning_rate, "the highest one (2e-6)");
    t.add("lr_scheduler", Takes::one, "constant, cosine, linear, ...", [this](const Setting& s) {
      if (s.text().starts_with("adafactor")) {
        adafactor_schedule_ = s;
        return;
      }
      const auto kind = parse_enum(kScheduleNames, s.text());
      if (!kind) s.fail_value(one_of(kScheduleNames, s.text()));
      c_.schedule.kind = *kind;
    });
    add_steps(t, "lr_warmup_steps", c_.schedule.warmup_steps, c_.warmup_share);
    add_steps(t, "lr_decay_steps", c_.schedule.decay_steps, c_.decay_share);
    t.add("lr_scheduler_num_cycles", c_.schedule.cycles, "of cosine_with_restarts");
    t.add("lr_scheduler_power", c_.schedule.power, "of polynomial");
    t.add("lr_scheduler_timescale", c_.schedule.timescale, "of inverse_sqrt");
    t.add("lr_scheduler_min_lr_ratio", c_.schedule.min_rate_ratio, "lowest rate over the highest");
    t.refuse("lr_scheduler_type", Takes::one,
             "Python classes cannot be loaded; use --lr_scheduler");
    t.add("lr_scheduler_args", Takes::many, "step_rules=1:100,0.1 of piecewise_constant",
          [this](const Setting& s) { schedule_args_ = s; });
  }

  // 100, 0.1 or 10%.
  static void add_steps(FlagTable& t, std::string_view name, std::int64_t& steps,
                        std::optional<double>& share) {
    t.add(name, Takes::one, "steps, or a share of them: 100, 0.1, 10%",
          [&steps, &share](const Setting& s) {
            Setting plain = s;
            const bool percent = s.text().ends_with('%');
            if (percent) plain.values.front().pop_back();
            const double value = percent ? plain.number() / 100 : plain.number();
            if (value < 0 || (percent && value > 1)) s.fail_value("steps or a share of them");
            share.reset();
            if (percent || (value > 0 && value < 1)) {
              share = value;
            } else {
              steps = plain.integer();
            }
          });
  }

  void declare_timesteps(FlagTable& t) {
    TimestepOptions& o = c_.timesteps;
    o.sampling = TimestepSampling::sigma;
    t.add("timestep_sampling", o.sampling, "sigma, uniform, sigmoid, shift, ...", kMusubiSamplings);
    t.add("discrete_flow_shift", o.shift, "of shift sampling");
    t.add("sigmoid_scale", o.sigmoid_scale, "of sigmoid and shift sampling");
    t.add("weighting_scheme", o.weighting, "none, logit_normal, mode, cosmap or sigma_sqrt",
          kWeightings);
    t.add("logit_mean", o.logit_mean, "of logit_normal and logsnr", -1e9);
    t.add("logit_std", o.logit_std, "of logit_normal and logsnr");
    t.add("mode_scale", o.mode_scale, "of mode", -1e9);
    t.add("min_timestep", min_timestep_, "0 to 1000");
    t.add("max_timestep", max_timestep_, "0 to 1000");
    t.add("preserve_distribution_shape", o.preserve_shape, "draw again instead of squeezing");
    t.add("num_timestep_buckets", strata_, "stratified timesteps");
  }

  void declare_network(FlagTable& t) {
    t.add("network_module", Takes::one, "networks.lora_wan", [](const Setting& s) {
      if (s.text() != "networks.lora_wan" && s.text() != "networks.lora") {
        s.fail_value("networks.lora_wan (LoHa and LoKr are not supported)");
      }
    });
    t.add("network_dim", Takes::one, "LoRA rank (4)", [this](const Setting& s) {
      c_.adapter.rank = s.integer();
      if (c_.adapter.rank < 1 || c_.adapter.rank > 65536) s.fail_value("1 to 65536");
    });
    t.add("network_alpha", c_.adapter.alpha, "LoRA alpha (1); 0: the rank");
    t.add("network_dropout", Takes::one, "on what A makes of a LoRA's input",
          [this](const Setting& s) {
            c_.adapter.hidden_dropout = s.number();
            if (!(c_.adapter.hidden_dropout >= 0 && c_.adapter.hidden_dropout < 1)) {
              s.fail_value("0 to less than 1");
            }
          });
    t.add(
        "network_args", Takes::many,
        "loraplus_lr_ratio=, exclude_patterns=, include_patterns=, rank_dropout=, module_dropout=",
        [this](const Setting& s) { network_args_ = s; });
    t.add("network_weights", c_.adapter.init_from, "begin with this LoRA");
    t.add("base_weights", base_weights_, "LoRAs merged into the model first");
    t.add("base_weights_multiplier", base_multipliers_, "their strengths");
    t.add("dim_from_weights", dim_from_weights_, "rank and alpha of the LoRA to begin with");
    t.add("scale_weight_norms", Takes::one, "largest norm of a LoRA pair's product (no limit)",
          [this](const Setting& s) {
            c_.adapter.max_norm = s.number();
            if (c_.adapter.max_norm <= 0) s.fail_value("a number above 0");
          });
  }

  void declare_rest(FlagTable& t) {
    t.add("sample_every_n_steps", c_.preview.every.steps, "draw previews every so many steps", 1);
    t.add("sample_every_n_epochs", c_.preview.every.epochs, "or every so many epochs", 1);
    t.add("sample_at_first", c_.preview.at_first, "and before the first step");
    t.add("sample_prompts", sample_prompts_,
          "file of their prompts, a line each: TEXT --w 832 --h 480 --f 81 --d 7 --s 30 --l 5");
    constexpr std::string_view kLogs = "the run folder has TensorBoard event files";
    for (const auto name : {"logging_dir", "log_with", "log_prefix", "log_tracker_name",
                            "log_tracker_config", "wandb_run_name", "wandb_api_key"}) {
      t.ignore(name, Takes::one, kLogs);
    }
    t.add("no_metadata", Takes::nothing, "write none into LoRA files",
          [this](const Setting& s) { c_.write_metadata = s.off; });
    const auto metadata = [&](std::string_view flag, std::string key) {
      t.add(flag, Takes::one, "written into LoRA files",
            [this, key](const Setting& s) { c_.metadata.emplace_back(key, s.text()); });
    };
    metadata("training_comment", "ss_training_comment");
    for (const std::string name : {"title", "author", "description", "license", "tags"}) {
      metadata("metadata_" + name, "modelspec." + name);
    }
    metadata("metadata_reso", "modelspec.resolution");
    metadata("metadata_arch", "modelspec.architecture");
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

  void finish_optimizer() {
    OptimizerOptions& o = c_.optimizer;
    o = optimizer_defaults(optimizer_, trained_dtype(c_));
    read_optimizer_args(optimizer_args_, o);
    const bool own_rate = optimizer_ == OptimizerKind::adafactor && o.relative_step;
    if (!adafactor_schedule_.name.empty() && !own_rate) {
      fail(adafactor_schedule_.code,
           fmt::format("{}: \"adafactor\" needs --optimizer_type Adafactor with relative_step=True",
                       adafactor_schedule_.where));
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
  Setting optimizer_args_, network_args_, adafactor_schedule_, schedule_args_;
  std::vector<std::string> base_weights_, base_multipliers_;
  std::string sample_prompts_;
};

}  // namespace

void describe_musubi(FlagTable& table) { MusubiReader("", ConfigUse::train).declare(table); }

TrainConfig read_musubi(const std::string& source, std::span<const Setting> settings,
                        ConfigUse use) {
  return MusubiReader(source, use).read(settings);
}

}  // namespace ballast::train
