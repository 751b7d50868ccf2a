#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/dtype.h"
#include "core/parse_enum.h"
#include "models/wan/lora_write.h"
#include "models/wan_vae/config.h"
#include "nn/machine_options.h"
#include "nn/optimizer.h"
#include "train/config/dmd2_options.h"
#include "train/schedule.h"
#include "train/timesteps.h"

namespace ballast::train {

// A run as Ballast understands it, whichever trainer's file or flags it was written in.

// Whose file or flags they were: decides defaults, output names and how the dataset is written.
enum class Dialect : std::uint8_t { diffusion_pipe, musubi, flow_matching };
enum class Method : std::uint8_t { lora, full };
enum class Experts : std::uint8_t { one, both };
enum class Loss : std::uint8_t { mse, huber, smooth_l1 };
enum class Reconstruction : std::uint8_t { mse, l1 };
enum class OnNan : std::uint8_t { stop, skip };
using ballast::DeviceChoice;
using wan::LoraFormat;
enum class Checkpointing : std::uint8_t { automatic, off, recompute, recompute_offloaded };

inline constexpr std::array<EnumName<Reconstruction>, 2> kReconstructionNames = {
    {{"mse", Reconstruction::mse}, {"l1", Reconstruction::l1}}};
inline constexpr std::array<EnumName<OnNan>, 2> kOnNanNames = {
    {{"stop", OnNan::stop}, {"skip", OnNan::skip}}};
inline constexpr std::array<EnumName<LoraFormat>, 3> kLoraFormatNames = {
    {{"comfy", LoraFormat::comfy}, {"kohya", LoraFormat::kohya}, {"peft", LoraFormat::peft}}};
inline constexpr std::array<EnumName<Experts>, 2> kExpertsNames = {
    {{"one", Experts::one}, {"both", Experts::both}}};
inline constexpr std::array<EnumName<UpdateRounding>, 3> kRoundingNames = {
    {{"nearest", UpdateRounding::nearest},
     {"kahan", UpdateRounding::kahan},
     {"stochastic", UpdateRounding::stochastic}}};

struct ModelConfig {
  std::string checkpoint;   // folder or file that holds the transformer
  std::string transformer;  // where it is named apart; with two experts the low-noise one
  std::string high_noise_transformer;  // the other expert of a two-expert run
  Experts experts = Experts::one;
  DType dtype = DType::bf16;               // of computing, where the backend has a choice
  std::optional<DType> transformer_dtype;  // of frozen block matrices; none: as stored
  bool transformer_scales = false;         // ... float8_e4m3 with a scale per row
  double boundary = 0;                     // between the experts; 0: the model's own
  std::vector<std::pair<std::string, double>> base_loras;  // merged first, with strength
  // What the user calls the model: "--task i2v-A14B". "": nothing.
  std::string task;
  bool task_takes_image = false;  // ... an image-to-video one
};

// A video autoencoder that is trained itself, instead of a transformer.
struct VaeConfig {
  std::string file;         // to fine-tune; "": from nothing
  wan_vae::Config network;  // from nothing
  Reconstruction reconstruction = Reconstruction::mse;
  double kl_weight = 1e-6;  // on the mean over latent values
  bool train_encoder = true;

  // Keys of [model].
  template <class Self, class Visit>
  static void fields(Self& v, Visit&& visit) {
    visit("reconstruction", v.reconstruction, "mse or l1", kReconstructionNames);
    visit("kl_weight", v.kl_weight, "of the KL divergence, on the mean over latent values", 0,
          1e30);
    visit("train_encoder", v.train_encoder, "false: the decoder alone is trained");
  }
};

// A smaller transformer that learns to answer as the model of the run does.
struct StudentConfig {
  std::int64_t layers = 0, dim = 0, ffn_dim = 0;  // 0: as many as the teacher
  std::string file;     // it begins with; "": with the teacher's first rows and columns
  double guidance = 1;  // of the answers it learns; exactly 1: not guided

  // Keys of [distill].
  template <class Self, class Visit>
  static void fields(Self& s, Visit&& visit) {
    visit("layers", s.layers, "of the student; without, as many as the teacher has", 1);
    visit("dim", s.dim, "its width", 1);
    visit("ffn_dim", s.ffn_dim, "the width of its feed-forward layers", 1);
    visit("guidance", s.guidance, "of the answers it learns; 1: they are not guided", 0, 1000);
  }
};

struct AdapterConfig {
  std::int64_t rank = 16;  // 0: that of init_from, and its alpha
  double alpha = 0;        // 0: rank
  // Of the input (diffusion-pipe); of the ranks' values, of ranks and of whole adapters (musubi).
  double dropout = 0, hidden_dropout = 0, rank_dropout = 0, module_dropout = 0;
  DType dtype = DType::f32;
  std::vector<std::string>
      exclude;                    // module suffixes or regular expressions (see exclude_is_regex)
  bool exclude_is_regex = false;  // full match on the module path; else its end
  std::vector<std::string> include;  // regular expressions: adapted although excluded
  std::string init_from;             // a LoRA file or a folder that holds one
  double up_rate_ratio = 1;          // LoRA+: learning rate of B over that of A
  double max_norm = 0;               // of alpha / rank B A after every step; 0: no limit
};

struct MemoryConfig : MachineOptions {
  bool fp8_matmul = false;                     // products with frozen matrices in float8_e4m3
  std::optional<std::int64_t> stream_blocks;   // forced
  std::optional<std::int64_t> blocks_to_swap;  // a hint: the planner may keep more resident
  Checkpointing checkpointing = Checkpointing::automatic;  // of a transformer a hint, too
};

// What `ballast cache` encodes a dataset with.
struct CachingConfig {
  std::string vae, text_encoder, tokenizer;  // files or folders; "": found in the model's folder
  std::optional<std::int64_t> batch_size;    // captions encoded at once at most; none: our choice
  std::optional<DType> store;                // of the files; none: the dialect's own
  bool image_to_video = false;               // where no transformer says it
  double max_megapixels = 0;                 // of images without buckets; 0: as they are
};

struct Cadence {  // any of them; none: never
  std::optional<std::int64_t> epochs, steps, examples;
  std::optional<double> minutes;
};

// A clip that is drawn now and then while training, to look at.
struct PreviewClip {
  std::string prompt, negative;  // negative "": the publishers' own
  std::string image = {};        // path of the image that it begins with; "": none
  std::string image_named = {};  // where that is said: "run.toml line 12: preview.image"
  std::optional<std::int64_t> width, height,
      frames;  // pixels; none: as the largest clips trained on
  std::int64_t steps = 20;
  std::optional<double> guidance, shift;      // none: the model's own
  std::optional<std::uint64_t> seed;          // none: the run's
  bool own_frames = false, own_size = false;  // its own line says them: --f; --w or --h
};
struct PreviewConfig {
  Cadence every;
  bool at_first = false;  // before the first step
  std::vector<PreviewClip> clips;

  bool wanted() const { return !clips.empty() && (every.steps || every.epochs || at_first); }
};

// A value per bucket size: [[512, 4], [1024, 1]], nearest side length wins.
struct BatchSizes {
  std::vector<std::pair<double, std::int64_t>> by_side;
  std::int64_t plain = 1;  // without a table; with one, its first value
  std::int64_t for_size(double width, double height) const;
  friend bool operator==(const BatchSizes&, const BatchSizes&) = default;
};

inline constexpr std::int64_t kMaxRanks = 4096;

// epochs of a run that ends by max_steps only.
inline constexpr std::int64_t kNoEpochLimit = std::int64_t{1} << 31;

// Ranks that share the samples of each step. One is a run as ever.
struct ParallelConfig {
  std::int64_t ranks = 1;
  std::int64_t columns = 0;  // of sums over samples (plan/reduction_columns.h); 0: one per rank
  std::optional<std::int64_t> global_batch;  // samples of a step; none: the batch size of each rank
  int rank = 0;                              // this process

  std::int64_t column_count() const { return columns > 0 ? columns : ranks; }
};

struct DatasetRef {
  std::string name;        // "train", "eval0"
  std::string config;      // path of its file; or a folder (flow-matching trainer)
  std::string named = {};  // where that is said: "run.toml line 3: dataset"; "": a default
};

struct TrainConfig {
  std::string source;  // path of the file it came from; "": flags only
  Dialect dialect = Dialect::diffusion_pipe;
  std::string output_dir;
  std::string output_name;  // of musubi's files; empty: diffusion-pipe's layout
  DatasetRef dataset;
  std::vector<DatasetRef> eval_datasets;
  ModelConfig model;
  std::optional<VaeConfig> vae;
  Method method = Method::lora;
  std::optional<Dmd2Options> dmd2;  // the LoRA is a student's of few steps
  std::optional<StudentConfig> student;
  AdapterConfig adapter;
  OptimizerOptions optimizer;
  ScheduleOptions schedule;  // see schedule_of(): total_steps wait for the dataset
  std::optional<double> warmup_share, decay_share;  // of all steps, instead of a number of them
  TimestepOptions timesteps;
  MemoryConfig memory;
  CachingConfig caching;
  PreviewConfig preview;
  ParallelConfig parallel;

  std::int64_t epochs = 1;
  std::optional<std::int64_t> max_steps;
  BatchSizes micro_batch, image_micro_batch, eval_micro_batch, eval_image_micro_batch;
  std::int64_t gradient_accumulation = 1, eval_gradient_accumulation = 1;
  double max_grad_norm = 1;  // 0: no clipping
  std::uint64_t seed = 0;
  double uncond_fraction = 0;

  Loss loss = Loss::mse;
  double loss_delta = 0;  // Huber's delta, smooth-L1's beta

  Cadence save, checkpoint, evaluate;
  bool evaluate_before_first_step = true;
  int keep_checkpoints = 3;
  DType save_dtype = DType::bf16;
  LoraFormat lora_format = LoraFormat::comfy;
  OnNan on_nan = OnNan::stop;
  bool write_metadata = true;                                 // into LoRA files
  std::vector<std::pair<std::string, std::string>> metadata;  // "modelspec.title" and the like

  std::int64_t steps_per_print = 1, logging_steps = 1, memory_line_steps = 100;
  bool examples_on_x_axis = false;
  std::string video_clip_mode = "single_beginning";
  bool webhook = true;          // where the environment names one (report/webhook.h)
  double webhook_minutes = 30;  // between two messages of progress; 0: none

  // Resume and one-time switches; usually flags.
  std::optional<std::string> resume;  // "": the newest run
  bool reset_dataloader = false, reset_optimizer = false, reset_optimizer_params = false;
  bool cache_only = false, regenerate_cache = false, trust_cache = false,
       allow_many_resolutions = false;
  bool require_cache = false;  // what is not encoded yet is an error and not encoded first

  std::vector<std::string> notes;  // one line per key that was accepted without effect, and why

  // What every trainer's run takes as flags, besides the machine's options (MachineOptions). A
  // visitor also gets limits (least, then most) or the words of an enum.
  template <class Self, class Visit>
  static void fields(Self& c, Visit&& visit) {
    visit("fp8_matmul", c.memory.fp8_matmul,
          "products with frozen matrices in fp8, where a GPU has it");
    visit("stream_blocks", c.memory.stream_blocks, "blocks whose weights are streamed");
    visit("ranks", c.parallel.ranks, "local processes that share the samples of each step", 1,
          kMaxRanks);
    visit("columns", c.parallel.columns,
          "shape of sums over samples, which decides their bits: runs with as many or fewer ranks "
          "give the same (one per rank)",
          1, kMaxRanks);
    visit("global_batch", c.parallel.global_batch,
          "samples of an optimizer step, over all ranks (batch size x accumulation x ranks)", 1);
    visit("max_steps", c.max_steps, "stop after so many optimizer steps", 1);
    visit("seed", c.seed, "of noise, timesteps, order and initial weights", 0);
    visit("output_dir", c.output_dir, "where runs are written");
    visit("experts", c.model.experts, "one or both of an A14B folder", kExpertsNames);
    visit("on_nan", c.on_nan, "stop or skip when a loss is not a number", kOnNanNames);
    visit("lora_format", c.lora_format, "comfy, kohya or peft: names inside LoRA files",
          kLoraFormatNames);
    visit("rounding", c.optimizer.rounding,
          "nearest, kahan or stochastic: how bf16 weights take updates", kRoundingNames);
    visit("ema_decay", c.optimizer.ema_decay,
          "keep a moving average of the trained weights, for example 0.99");
    visit("keep_checkpoints", c.keep_checkpoints, "how many checkpoints stay on disk", 1,
          1'000'000);
    visit("memory_line_steps", c.memory_line_steps, "steps between two memory lines; 0: none");
    visit("webhook_every_minutes", c.webhook_minutes,
          "minutes between two messages of progress to a webhook; 0: none (30)");
    visit("resume", c.resume, "continue the newest run in output_dir, or that one");
    visit("resume_from_checkpoint", c.resume, "the same as --resume");
    visit("reset_dataloader", c.reset_dataloader, "on resume begin the epoch again");
    visit("reset_optimizer", c.reset_optimizer, "on resume forget the optimizer's state");
    visit("reset_optimizer_params", c.reset_optimizer_params,
          "on resume take rate, betas and decay from the config");
    visit("regenerate_cache", c.regenerate_cache, "build all caches again");
    visit("trust_cache", c.trust_cache, "use caches without comparing fingerprints");
    visit("cache_only", c.cache_only, "build caches and stop");
    visit("require_cache", c.require_cache,
          "fail where something is not encoded yet, instead of encoding it first");
    visit("i_know_what_i_am_doing", c.allow_many_resolutions, "allow more than three resolutions");
  }
};

// Micro-batches of one optimizer step, over all ranks.
std::int64_t step_accumulation(const TrainConfig& c);
// Samples of one optimizer step, as the trainers count it: that of the first micro-batch entry.
std::int64_t global_batch(const TrainConfig& c);

// What ends first: epochs or max_steps.
std::int64_t total_steps(const TrainConfig& c, std::int64_t steps_per_epoch);

// c.schedule with what depends on the dataset. diffusion-pipe's schedules run over all epochs even
// where max_steps ends the run before.
ScheduleOptions schedule_of(const TrainConfig& c, std::int64_t steps_per_epoch);

std::string_view name_of(Dialect d);  // "diffusion-pipe"

}  // namespace ballast::train
