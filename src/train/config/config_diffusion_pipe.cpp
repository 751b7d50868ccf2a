#include <fmt/format.h>

#include "train/config/config_dialects.h"
#include "train/config/enum_names.h"
#include "train/config/toml_checks.h"

namespace ballast::train {
namespace {

constexpr std::string_view kOneReader = "one reader decodes ahead of the encoder";
constexpr std::string_view kOneDevice =
    "the model is not cut over several devices; blocks that do not fit are streamed";
constexpr std::string_view kTensorBoard =
    "Weights & Biases is not used; the run folder has TensorBoard event files";

constexpr IgnoredKey kIgnored[] = {
    {"partition_method", kOneDevice},
    {"partition_split", kOneDevice},
    {"disable_block_swap_for_eval", "the plan decides which blocks stay in GPU memory"},
    {"reentrant_activation_checkpointing", "a detail of PyTorch"},
    {"pseudo_huber_c", "diffusion-pipe does not read it any more; huber_delta is the Huber loss"},
    {"map_num_proc", kOneReader},
    {"compile", "kernels are compiled already"},
};
constexpr IgnoredKey kIgnoredOfModel[] = {
    {"text_encoder_fp8", "the text encoder is streamed as it is stored"},
    {"cache_text_embeddings", "text embeddings are always cached"},
    {"guidance", "Wan has no guidance input"},
};
constexpr IgnoredKey kIgnoredOfMonitoring[] = {
    {"enable_wandb", kTensorBoard},
    {"wandb_api_key", kTensorBoard},
    {"wandb_tracker_name", kTensorBoard},
    {"wandb_run_name", kTensorBoard},
};
constexpr std::array<EnumName<ScheduleKind>, 3> kSchedules = {{
    {"constant", ScheduleKind::constant},
    {"linear", ScheduleKind::linear},
    {"cosine", ScheduleKind::cosine},
}};
constexpr std::array<EnumName<TimestepSampling>, 2> kSamplings = {{
    {"logit_normal", TimestepSampling::table_logit_normal},
    {"uniform", TimestepSampling::table_uniform},
}};

class DiffusionPipeReader {
 public:
  explicit DiffusionPipeReader(const TomlFile& file)
      : root_(file.root()), find_path_(file.path(), &c_.notes) {
    c_.source = file.path();
    c_.dialect = Dialect::diffusion_pipe;
  }

  TrainConfig read() {
    const TomlTable model = section("model", true);
    const bool vae = model.string("type", "") == "wan_vae";
    if (vae) {
      read_vae_model(model, find_path_, c_);
      if (root_.has("adapter")) root_.fail_at("adapter", "a VAE is trained whole: it has none");
    } else {
      read_model(model);
    }
    if (root_.has("adapter")) {
      read_adapter(section("adapter", true));
    } else if (!vae) {
      c_.method = Method::full;
    }
    if (root_.has("distill")) {
      if (vae) root_.fail_at("distill", "a VAE has no steps to distil");
      read_distill(section("distill", true), find_path_, c_);
    }
    if (!vae && c_.method == Method::full) {
      const bool own = model.has("transformer_dtype") && !c_.student;  // else the teacher's
      refuse_untrainable(model, own ? "transformer_dtype" : "dtype", trained_dtype(c_));
    }
    if (root_.has("preview")) {
      if (vae || c_.dmd2 || c_.student) {
        root_.fail_at("preview", "clips are drawn of a transformer that is trained by itself",
                      {{"remove the section", "ballast sample draws what was saved"}});
      }
      read_preview(section("preview", true), find_path_, c_);
    }
    read_run();
    read_batches();
    read_cadences();
    read_loss();
    const auto constant_rate = number_from(root_, "force_constant_lr", 0, kMaxNumber);
    read_optimizer(section("optimizer", true), constant_rate, c_);
    read_schedule(constant_rate.has_value());
    read_memory();
    if (const auto monitoring = root_.table("monitoring")) {
      monitoring->finish(kIgnoredOfMonitoring, c_.notes);
    }
    root_.finish(kIgnored, c_.notes);
    return std::move(c_);
  }

 private:
  TomlTable section(std::string_view key, bool required) {
    auto table = root_.table(key);
    if (!table && required) {
      fail(ErrorCode::input, "{}: the section [{}] is missing", root_.path(), key);
    }
    return *table;
  }

  void refuse_untrainable(const TomlTable& t, std::string_view key, DType dtype) {
    if (dtype == DType::f32 || dtype == DType::bf16) return;
    t.fail_at(key, fmt::format("weights of type {} cannot be trained, expected float32 or bfloat16",
                               name_of(dtype)));
  }

  void read_model(const TomlTable& t) {
    if (const std::string type = t.require_string("type"); type != "wan") {
      t.fail_at(
          "type",
          fmt::format("expected 'wan' or 'wan_vae', found '{}': other models are not supported",
                      printable(type, 60)));
    }
    ModelConfig& m = c_.model;
    m.checkpoint = find_path_.find("ckpt_path", t.require_string("ckpt_path"));
    m.transformer = find_path_.find("transformer_path", t.string("transformer_path", ""));
    (void)t.require_string("dtype");
    m.dtype = *word_from(t, "dtype", kDTypeNames);
    if (size_of(m.dtype) == 1) t.fail_at("dtype", "computing needs float32, float16 or bfloat16");
    m.transformer_dtype = word_from(t, "transformer_dtype", kDTypeNames).value_or(m.dtype);
    m.boundary = number_from(t, "boundary", 0, 1).value_or(0);
    CachingConfig& caching = c_.caching;
    caching.vae = find_path_.find("vae_path", t.string("vae_path", ""));
    caching.text_encoder = find_path_.find("llm_path", t.string("llm_path", ""));
    caching.tokenizer = find_path_.find("tokenizer_path", t.string("tokenizer_path", ""));
    read_base_loras(t);
    TimestepOptions& o = c_.timesteps;
    o.sampling = word_from(t, "timestep_sample_method", kSamplings).value_or(o.sampling);
    o.sigmoid_scale = number_from(t, "sigmoid_scale", 0, kMaxNumber).value_or(1);
    o.shift = number_from(t, "shift", 0, kMaxNumber).value_or(0);
    o.flux_shift = t.boolean("flux_shift", false) && o.shift == 0;
    if (o.shift > 0 && t.has("flux_shift")) {
      c_.notes.push_back(
          fmt::format("model.flux_shift (line {}): shift decides where both are given",
                      t.line_of("flux_shift")));
    }
    if (o.sampling == TimestepSampling::table_uniform && t.has("sigmoid_scale")) {
      c_.notes.push_back(fmt::format("model.sigmoid_scale (line {}): only logit_normal is scaled",
                                     t.line_of("sigmoid_scale")));
    }
    o.min_t = number_from(t, "min_t", 0, 1).value_or(0);
    o.max_t = number_from(t, "max_t", 0, 1).value_or(1);
    if (o.min_t >= o.max_t) {
      t.fail_at(t.has("max_t") ? "max_t" : "min_t",
                fmt::format("no timestep lies in [{}, {})", o.min_t, o.max_t));
    }
    t.finish(kIgnoredOfModel, c_.notes);
  }

  // base_loras = ["a.safetensors", ["b.safetensors", 0.5]]: a key of ours.
  void read_base_loras(const TomlTable& t) {
    const TomlValue* list = t.find("base_loras");
    if (list == nullptr) return;
    constexpr std::string_view kWanted = "expected a list of paths or [path, strength] pairs";
    if (list->kind != TomlValue::Kind::array) t.fail_at("base_loras", kWanted);
    for (const TomlValue& item : list->items) {
      const bool pair = item.kind == TomlValue::Kind::array && item.items.size() == 2;
      const TomlValue& path = pair ? item.items[0] : item;
      double strength = 1;
      if (pair && item.items[1].kind == TomlValue::Kind::integer) {
        strength = static_cast<double>(item.items[1].integer);
      } else if (pair && item.items[1].kind == TomlValue::Kind::real) {
        strength = item.items[1].real;
      } else if (pair) {
        t.fail_at("base_loras", kWanted);
      }
      if (path.kind != TomlValue::Kind::string) t.fail_at("base_loras", kWanted);
      c_.model.base_loras.emplace_back(find_path_.find("base_loras", path.string), strength);
    }
  }

  void read_adapter(const TomlTable& t) {
    c_.method = Method::lora;
    const std::string type = t.require_string("type");
    if (type != "lora") {
      t.fail_at("type",
                fmt::format("expected 'lora', found '{}': other adapters are not supported{}",
                            printable(type, 60), type == "lokr" ? ", lokr neither" : ""));
    }
    if (t.has("alpha")) {
      t.fail_at("alpha", "diffusion-pipe has no alpha: it is always the rank, so the scale is 1",
                {{"remove the line", "alpha = rank, as every diffusion-pipe LoRA has it"}});
    }
    AdapterConfig& a = c_.adapter;
    (void)t.require_integer("rank");
    a.rank = *integer_from(t, "rank", 1);
    if (a.rank > 65536) t.fail_at("rank", fmt::format("expected at most 65536, found {}", a.rank));
    const auto dtype = word_from(t, "dtype", kDTypeNames);
    a.dtype = dtype.value_or(c_.model.dtype);
    if (a.dtype == DType::f16) {  // given, or the model's: sums of small updates would be lost
      c_.notes.push_back(
          "adapter.dtype: factors of type float16 are trained as float32; files have save_dtype");
      a.dtype = DType::f32;
    }
    if (dtype) refuse_untrainable(t, "dtype", a.dtype);
    a.dropout = number_from(t, "dropout", 0, 0.999).value_or(0);
    a.init_from = find_path_.find("init_from_existing", t.string("init_from_existing", ""));
    a.up_rate_ratio = number_from(t, "loraplus_lr_ratio", 0, kMaxNumber).value_or(1);
    if (const TomlValue* value = t.find("exclude_modules")) {
      a.exclude_is_regex = value->kind == TomlValue::Kind::string;
      if (a.exclude_is_regex) {
        a.exclude = {value->string};
      } else {
        a.exclude = t.strings("exclude_modules");
      }
    }
    constexpr IgnoredKey kOfLokr[] = {{"decompose_factor", "of the lokr adapter only"},
                                      {"rank_dropout", "of the lokr adapter only"}};
    t.finish(kOfLokr, c_.notes);
  }

  void read_run() {
    c_.output_dir = root_.require_string("output_dir");
    c_.dataset = {"train", find_path_.find("dataset", root_.require_string("dataset")),
                  fmt::format("{} line {}: dataset", root_.path(), root_.line_of("dataset"))};
    read_eval_datasets();
    (void)root_.require_integer("epochs");
    c_.epochs = *integer_from(root_, "epochs", 1);
    if (c_.epochs >= kNoEpochLimit) {
      root_.fail_at("epochs", fmt::format("expected less than {}", kNoEpochLimit));
    }
    c_.max_steps = integer_from(root_, "max_steps", 1);
    c_.seed = static_cast<std::uint64_t>(integer_from(root_, "seed", 0).value_or(0));
    c_.model.experts = word_from(root_, "experts", kExpertsNames).value_or(Experts::one);
    if (c_.model.experts == Experts::both && !c_.model.transformer.empty()) {
      root_.fail_at("experts", "\"both\" and model.transformer_path contradict each other",
                    {{"remove transformer_path", "both experts of ckpt_path are trained"}});
    }
    c_.on_nan = word_from(root_, "on_nan", kOnNanNames).value_or(OnNan::stop);
    c_.lora_format = word_from(root_, "lora_format", kLoraFormatNames).value_or(LoraFormat::comfy);
    c_.save_dtype =
        word_from(root_, "save_dtype", kDTypeNames).value_or(c_.vae ? DType::f32 : c_.model.dtype);
    c_.steps_per_print = integer_from(root_, "steps_per_print", 1).value_or(1);
    c_.logging_steps = integer_from(root_, "logging_steps", 1).value_or(1);
    c_.memory_line_steps = integer_from(root_, "memory_line_steps", 0).value_or(100);
    c_.examples_on_x_axis = root_.boolean("x_axis_examples", false);
    c_.video_clip_mode = root_.string("video_clip_mode", c_.video_clip_mode);
    if (c_.video_clip_mode != "single_beginning" && c_.video_clip_mode != "single_middle") {
      root_.fail_at("video_clip_mode",
                    fmt::format("expected single_beginning or single_middle, found \"{}\"",
                                printable(c_.video_clip_mode, 60)));
    }
    c_.uncond_fraction = number_from(root_, "uncond_fraction", 0, 1).value_or(0);
    c_.caching.batch_size = integer_from(root_, "caching_batch_size", 1);
    read_resume();
    read_webhook();
    if (integer_from(root_, "pipeline_stages", 1).value_or(1) > 1) {
      c_.notes.push_back(fmt::format("pipeline_stages (line {}): {}",
                                     root_.line_of("pipeline_stages"), kOneDevice));
    }
  }

  void read_resume() {
    c_.regenerate_cache = root_.boolean("regenerate_cache", false);
    const TomlValue* value = root_.find("resume_from_checkpoint");
    if (value == nullptr) return;
    if (value->kind == TomlValue::Kind::string) {
      c_.resume = value->string;
    } else if (root_.boolean("resume_from_checkpoint", false)) {
      c_.resume = "";
    }
  }

  void read_webhook() {
    c_.webhook_minutes =
        number_from(root_, "webhook_every_minutes", 0, 1e6).value_or(c_.webhook_minutes);
    const TomlValue* value = root_.find("webhook");
    if (value == nullptr) return;
    if (value->kind == TomlValue::Kind::string) {  // its address, which no message may repeat
      root_.fail_at("webhook", "expected true or false: the address is a secret",
                    {{"put the address into the environment variable BALLAST_WEBHOOK_URL",
                      "messages are sent there and it is never written to a file"}});
    }
    c_.webhook = root_.boolean("webhook", true);
  }

  void read_eval_datasets() {
    const TomlValue* list = root_.find("eval_datasets");
    if (list == nullptr) return;
    constexpr std::string_view kWanted = "expected a list of paths or of {name, config} tables";
    if (list->kind != TomlValue::Kind::array) root_.fail_at("eval_datasets", kWanted);
    for (const TomlValue& item : list->items) {
      DatasetRef ref{fmt::format("eval{}", c_.eval_datasets.size()), "",
                     fmt::format("{} line {}: eval_datasets", root_.path(), item.line)};
      if (item.kind == TomlValue::Kind::string) {
        ref.config = item.string;
      } else if (item.kind == TomlValue::Kind::table) {
        for (const auto& [key, value] : item.members) {
          if ((key != "name" && key != "config") || value.kind != TomlValue::Kind::string) {
            root_.fail_at("eval_datasets", kWanted);
          }
          (key == "name" ? ref.name : ref.config) = value.string;
        }
      }
      if (ref.config.empty()) root_.fail_at("eval_datasets", kWanted);
      ref.config = find_path_.find("eval_datasets", ref.config);
      c_.eval_datasets.push_back(std::move(ref));
    }
  }

  BatchSizes batch(std::string_view key, const BatchSizes& otherwise) {
    const TomlValue* value = root_.find(key);
    if (value == nullptr) return otherwise;
    if (value->kind != TomlValue::Kind::array) return {{}, *integer_from(root_, key, 1)};
    BatchSizes sizes;
    for (const std::vector<double>& row : root_.number_rows(key)) {
      // 2^20 samples of the smallest clip are more than any machine holds.
      if (row.size() != 2 || !(row[0] > 0) || !(row[1] >= 1 && row[1] <= 1 << 20) ||
          row[1] != static_cast<double>(static_cast<std::int64_t>(row[1]))) {
        root_.fail_at(key, "expected pairs [side length, batch size]");
      }
      sizes.by_side.emplace_back(row[0], static_cast<std::int64_t>(row[1]));
    }
    if (sizes.by_side.empty()) root_.fail_at(key, "expected pairs [side length, batch size]");
    sizes.plain = sizes.by_side.front().second;
    return sizes;
  }

  void read_batches() {
    c_.micro_batch = batch("micro_batch_size_per_gpu", {});
    c_.image_micro_batch = batch("image_micro_batch_size_per_gpu", c_.micro_batch);
    c_.eval_micro_batch = batch("eval_micro_batch_size_per_gpu", c_.micro_batch);
    // The shipped example has the words of this key in another order.
    c_.eval_image_micro_batch =
        batch("eval_image_micro_batch_size_per_gpu",
              batch("image_eval_micro_batch_size_per_gpu", c_.eval_micro_batch));
    c_.gradient_accumulation = integer_from(root_, "gradient_accumulation_steps", 1).value_or(1);
    c_.eval_gradient_accumulation =
        integer_from(root_, "eval_gradient_accumulation_steps", 1).value_or(1);
    c_.max_grad_norm = number_from(root_, "gradient_clipping", 0, kMaxNumber).value_or(1);
  }

  Cadence cadence(std::string_view word) {
    const auto every = [&](std::string_view unit) {
      return integer_from(root_, fmt::format("{}_every_n_{}", word, unit), 1);
    };
    return {every("epochs"), every("steps"), every("examples"), std::nullopt};
  }

  void read_cadences() {
    c_.save = cadence("save");
    c_.evaluate = cadence("eval");
    c_.evaluate_before_first_step = root_.boolean("eval_before_first_step", true);
    c_.checkpoint.epochs = integer_from(root_, "checkpoint_every_n_epochs", 1);
    c_.checkpoint.steps = integer_from(root_, "checkpoint_every_n_steps", 1);  // ours
    c_.checkpoint.minutes = number_from(root_, "checkpoint_every_n_minutes", 0.001, kMaxNumber);
    const auto kept = integer_from(root_, "keep_checkpoints", 1);
    if (kept && *kept > 1'000'000) root_.fail_at("keep_checkpoints", "expected at most 1000000");
    if (kept) c_.keep_checkpoints = static_cast<int>(*kept);
  }

  void read_loss() {
    const auto huber = number_from(root_, "huber_delta", 1e-30, kMaxNumber);
    const auto smooth = number_from(root_, "smooth_l1_beta", 1e-30, kMaxNumber);
    if (huber) {
      c_.loss = Loss::huber;
      if (smooth) {
        c_.notes.push_back(fmt::format("smooth_l1_beta (line {}): huber_delta decides the loss",
                                       root_.line_of("smooth_l1_beta")));
      }
    } else if (smooth) {
      c_.loss = Loss::smooth_l1;
    }
    c_.loss_delta = huber ? *huber : smooth.value_or(0);
  }

  void read_schedule(bool constant) {
    ScheduleOptions& s = c_.schedule;
    s.style = ScheduleStyle::diffusion_pipe;
    s.kind = word_from(root_, "lr_scheduler", kSchedules).value_or(ScheduleKind::constant);
    s.warmup_steps = integer_from(root_, "warmup_steps", 0).value_or(0);
    if (constant) {
      s.kind = ScheduleKind::constant;
      s.warmup_steps = 0;
      for (const char* const key : {"lr_scheduler", "warmup_steps"}) {
        if (!root_.has(key)) continue;
        c_.notes.push_back(fmt::format("{} (line {}): force_constant_lr keeps the rate constant",
                                       key, root_.line_of(key)));
      }
    }
  }

  void read_memory() {
    MemoryConfig& m = c_.memory;
    m.blocks_to_swap = integer_from(root_, "blocks_to_swap", 0);
    if (const TomlValue* value = root_.find("activation_checkpointing")) {
      if (value->kind == TomlValue::Kind::string && value->string == "unsloth") {
        m.checkpointing = Checkpointing::recompute_offloaded;
      } else if (value->kind == TomlValue::Kind::boolean) {
        m.checkpointing = value->boolean ? Checkpointing::recompute : Checkpointing::off;
      } else {
        root_.fail_at("activation_checkpointing", fmt::format("expected true, false or 'unsloth', "
                                                              "found {}",
                                                              describe(*value)));
      }
    }
    const auto t = root_.table("memory");
    if (!t) return;
    constexpr std::string_view kMachine[] = {"gpu",    "ram",    "disk",
                                             "policy", "device", "verify_weights"};
    read_machine_options(*t, kMachine, m);
    m.stream_blocks = integer_from(*t, "stream_blocks", 0);
    m.deterministic = t->boolean("deterministic", true);
    m.fp8_matmul = t->boolean("fp8_matmul", false);
    t->finish();
  }

  TrainConfig c_;
  TomlTable root_;
  PathFinder find_path_;
};

}  // namespace

void declare_diffusion_pipe(FlagTable& table, TrainConfig* c) {
  table.add("vae_gradient_checkpointing", FlagTable::Takes::nothing,
            "a VAE in training computes its stages again instead of keeping them",
            [c](const Setting& s) {
              if (!c->vae) {
                c->notes.push_back(fmt::format("{}: no VAE is trained", s.where));
                return;
              }
              c->memory.checkpointing = s.off ? Checkpointing::off : Checkpointing::recompute;
            });
  table.refuse("dump_dataset", FlagTable::Takes::one, "a debugging aid that is not offered");
  table.refuse("test_sample", FlagTable::Takes::nothing, "a debugging aid that is not offered");
}

TrainConfig read_diffusion_pipe(const TomlFile& file, std::span<const Setting> flags) {
  TrainConfig c = DiffusionPipeReader(file).read();
  FlagTable table(&c.notes);
  CommonFlags common;
  common.declare(table);
  declare_diffusion_pipe(table, &c);
  table.read(flags);
  common.apply(c);
  return c;
}

}  // namespace ballast::train
