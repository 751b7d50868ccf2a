#pragma once

// Ballast as a library: plan and train a Wan diffusion transformer inside a memory budget.
//
//   auto model = ballast::v1::Model::open("model.safetensors");
//   model.set_training({.rank = 16, .learning_rate = 1e-4});
//   model.set_batches({{{.frames = 6, .height = 64, .width = 64}}});
//   model.set_budget({.ram = 24'000'000'000});
//   model.enable_gradient_checkpointing();
//   if (const auto plan = model.plan(); !plan.fits) return say(plan.text, plan.advice);
//   for (...) model.step(samples);
//   model.save_lora("lora.safetensors");
//
// This header needs the standard library alone. All of it is in ballast::v1; a change that breaks
// callers gets a namespace of its own. Sizes are bytes, times seconds.
//
// Failures are thrown as ballast::v1::Error, and nothing else is; that a plan does not fit is an
// answer of plan(), not a failure. After an Error the object is as it was before the call, except
// when step(), predict(), start() or load_checkpoint() fail with another code than usage, input or
// refused: then it can only be destroyed.
//
// Threads: one object is for one thread at a time; it may move between threads. Different objects
// are independent and may work at the same time, each with compute threads of its own. The process
// has in common: the log on stderr with its level (BALLAST_LOG), and measured().ram, which counts
// every object. Folders that are written to (save_checkpoint, train) belong to one object at a
// time.

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace ballast::v1 {

// The numbers are the exit codes of the command line.
enum class ErrorCode : int {
  internal = 1,  // a bug of Ballast
  usage = 2,     // a call that cannot be meant
  refused = 3,   // does not fit the budget
  input = 4,     // a file or sample that contradicts itself or the model
  device = 5,
  io = 6,
};

struct Advice {
  std::string change;  // "set_budget({.ram = 9'400'000'000})"
  std::string effect;  // "fits in 7.1 GB of device and 2.2 GB of host memory, step time x 1.10"
};

class Error : public std::exception {
 public:
  Error(ErrorCode code, std::string message, std::vector<std::string> trail = {},
        std::vector<Advice> advice = {})
      : code_(code),
        message_(std::move(message)),
        trail_(std::move(trail)),
        advice_(std::move(advice)) {}

  ErrorCode code() const noexcept { return code_; }
  const char* what() const noexcept override { return message_.c_str(); }
  // What Ballast was doing, innermost first.
  const std::vector<std::string>& trail() const noexcept { return trail_; }
  const std::vector<Advice>& advice() const noexcept { return advice_; }

 private:
  ErrorCode code_;
  std::string message_;
  std::vector<std::string> trail_;
  std::vector<Advice> advice_;
};

// What a file or folder holds.
struct ModelInfo {
  std::string path;
  std::string name;  // "wan2.2-ti2v-5b", or "wan" for sizes of no released model
  std::uint64_t parameters = 0, bytes = 0;
  std::int64_t layers = 0, width = 0, heads = 0, feed_forward = 0;
  std::int64_t latent_channels = 0, conditioning_channels = 0;
  std::int64_t text_rows = 0, text_width = 0;  // of the text encoder's states
  std::int64_t pixels_per_cell = 0;            // of a latent, in height and width
  std::vector<std::string> warnings;           // what is odd about the files, a sentence each
};

// Frames, rows and columns of a latent; rows and columns are even.
struct LatentSize {
  std::int64_t frames = 0, height = 0, width = 0;
  friend bool operator==(const LatentSize&, const LatentSize&) = default;
};

// The samples of one step, each with its size.
using Batch = std::vector<LatentSize>;

// What may be used. None: gpu and ram what the machine has free, less a reserve; disk nothing.
// Without a GPU the device arena is RAM: ram bounds everything, gpu (if given) the device arena.
struct Budget {
  std::optional<std::uint64_t> gpu = {}, ram = {}, disk = {};
};

enum class Method {
  lora,          // factors beside frozen weights
  full,          // all weights
  predict_only,  // no training: step() is an error
};

struct TrainingOptions {
  Method method = Method::lora;
  std::int64_t rank = 16;
  double alpha = 0;  // 0: rank
  double dropout = 0;
  std::string init_from = {};  // a LoRA file to start from
  // adamw, adamw_optimi, stableadamw, adamw8bit, adamw8bit_kahan, adafactor, sgd
  std::string optimizer = "adamw";
  double learning_rate = 1e-4;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0.01;
  std::optional<double> ema_decay = {};
  double max_grad_norm = 1;        // 0: no clipping
  std::uint64_t seed = 0;          // of noise, timesteps, dropout and the factors' first values
  std::string weights = "stored";  // frozen matrices on the device: f32, bf16, f16, fp8, int8 ...
  // Timesteps of samples that name none: logit_normal or uniform over [min_t, max_t), shifted
  // towards noise by `shift` (0: not).
  std::string timesteps = "logit_normal";
  double shift = 0, min_t = 0, max_t = 1;
  double time_offset = 0;  // the model is told 1000 t + this
};

struct MemoryUse {
  // Arenas: all that is computed with. Of a GPU all that the process has there, its context too.
  std::uint64_t device = 0, host = 0;
  std::uint64_t disk = 0;
  // The process: anonymous and shared memory, without a GPU the arenas too, and what the process
  // held before Ballast.
  std::uint64_t ram = 0;
};

struct Plan {
  bool fits = false;
  // Of the plan; when it does not fit, of the closest one, all that the host tier needs in `host`.
  MemoryUse planned;
  MemoryUse allowed;            // device, host (of the process) and disk budgets; ram is host again
  double seconds_per_step = 0;  // predicted; 0 when it does not fit
  std::string policy;           // in words: what streams, what is kept, what is computed again
  std::string text, json;       // as `ballast plan` and `ballast plan --json` print it
  std::vector<Advice> advice;   // when it does not fit: single changes, each planned anew
};

// One sample. Spans must stay good during the call only.
struct Sample {
  LatentSize size = {};
  std::span<const float> latent =
      {};  // [latent_channels, frames, height, width]; normalised, clean
  std::span<const float> conditioning = {};  // [conditioning_channels, frames, height, width]
  std::span<const float> text = {};          // [rows, text_width], rows <= text_rows
  std::optional<double> t = {};              // noise fraction in [0, 1]; none: drawn
};

enum class LoraFormat { comfy, kohya, peft };
enum class SaveType { f32, bf16, f16 };

// The same with arrays of other types, for step_arrays() and predict_arrays().
struct Array {
  const void* data = nullptr;
  std::size_t values = 0;  // elements
  SaveType type = SaveType::f32;
};
struct MutableArray {
  void* data = nullptr;
  std::size_t values = 0;
  SaveType type = SaveType::f32;
};
struct ArraySample {
  LatentSize size = {};
  Array latent = {}, conditioning = {}, text = {};
  std::optional<double> t = {};
};

struct StepResult {
  std::int64_t step = 0;  // from 1
  double loss = 0;        // mean over samples, flow matching: |v - (noise - latent)|^2
  double grad_norm = 0;   // before clipping
  double seconds = 0;
  bool updated = false;  // false: loss or gradient were no numbers, the weights were left alone
};

enum class Device {
  automatic,  // a GPU where this build and the machine have one
  cpu,
  cuda,
};

// One transformer, trained or asked. Nothing of the weights is read before the first step(),
// predict(), start() or load_checkpoint(). From then on the training options other than the
// learning rate are fixed, and changing one is an Error (usage). Everything else (memory, budget,
// threads, device, batches) may change between steps: the next call plans anew and loads the
// weights under the new plan; what was trained and the optimizer's state stay the same to the bit.
// In between they wait in a temporary folder (TMPDIR). Where the new plan does not fit, the call is
// an Error (refused) and the object goes on as it was once the setting is taken back.
class Model {
 public:
  // A safetensors file, an index of shards, or a folder that holds one of either.
  static Model open(const std::string& path);
  Model(Model&&) noexcept;
  Model& operator=(Model&&) noexcept;
  ~Model();

  const ModelInfo& info() const;

  // How memory is saved; none of it changes a bit of any result. What is never switched is for the
  // planner: it takes the fastest plan that fits.
  // Checkpointing: blocks keep little of their forward pass and compute the rest again.
  void enable_gradient_checkpointing();
  void disable_gradient_checkpointing();
  // Offloading: weights wait in host memory or in the model's file and pass through slots on the
  // device; what blocks keep for the backward pass waits in host memory.
  void enable_offloading();
  void disable_offloading();
  void leave_memory_to_the_planner();  // as if none of the four had been called

  // What the system allows less (control groups, ulimit, free memory) counts instead.
  void set_budget(const Budget& budget);
  void set_threads(int threads);  // of computing on the CPU; 0 (default): all processors
  // Error (device) when the plan is made, where `cuda` is wanted and no GPU can be used. Not
  // deterministic: faster on a GPU, the same bits no longer.
  void set_device(Device device, bool deterministic = true);
  void set_training(const TrainingOptions& options);
  // Every kind of step there will be, and with them the sizes that predict() takes.
  void set_batches(std::vector<Batch> batches);

  // From headers alone, quick, as often as wanted.
  Plan plan();

  // Loads the weights under the plan. Error (refused, with the advice) when it does not fit.
  void start();
  bool started() const;

  // One optimizer step on samples whose sizes are one of the batches. Noise, timesteps and dropout
  // depend on seed, step number and the sample's place alone.
  StepResult step(std::span<const Sample> samples);
  StepResult step_arrays(std::span<const ArraySample> samples);
  void set_learning_rate(double rate);  // from the next step on
  std::int64_t steps() const;           // made so far

  // The model's output (a velocity) for a latent as it is, with what was trained so far applied.
  // model_time: 1000 t. out: [latent_channels, frames, height, width].
  void predict(const Sample& sample, double model_time, std::span<float> out);
  void predict_arrays(const ArraySample& sample, double model_time, const MutableArray& out);

  // Files are written whole or not at all. With ema_decay the average is what is saved.
  void save_lora(const std::string& path, LoraFormat format = LoraFormat::comfy,
                 SaveType type = SaveType::bf16);
  void save_model(const std::string& path, SaveType type = SaveType::bf16);  // Method::full

  // Trained weights, optimizer state and step count, below folder/checkpoints; returns its path.
  // All but the `keep` newest are removed. The newest whole one is loaded, into an object with the
  // same settings (memory, threads, budget and learning rate may differ); from there on every bit
  // is as if the run had not stopped. False: there is none.
  std::string save_checkpoint(const std::string& folder, int keep = 3);
  bool load_checkpoint(const std::string& folder);

  // Most of each arena that was used so far, and the process as it is now.
  MemoryUse measured() const;

 private:
  struct State;
  explicit Model(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// `ballast train` in one call.

struct TrainStep {
  std::int64_t step = 0, total_steps = 0, epoch = 0;
  double loss = 0, learning_rate = 0, grad_norm = 0, seconds = 0;
  MemoryUse planned, measured;
};

// All optional; called on the thread that called train(). An exception from one ends the run as a
// kill would, and comes out of train() as it is.
struct TrainCallbacks {
  std::function<void(const std::string&)> note = {};  // about the configuration, before anything
  std::function<void(const Plan&)> planned = {};      // before weights are read; also when refused
  std::function<void(const TrainStep&)> step = {};    // after each step
  std::function<bool()> stop = {};                    // asked after each step; true: save, return
  bool handle_signals = false;  // SIGINT, SIGTERM do the same; one train() at a time then
};

struct TrainResult {
  std::string folder, report;  // the run's folder and its HTML page
  std::int64_t steps = 0;
  double last_loss = 0;
  bool stopped = false;
  std::uint64_t planned_ram = 0, measured_ram = 0;
};

// flags: as behind the file on the command line: {"--resume"}, {"--seed", "3"}. Error (refused)
// when the run does not fit. Progress is also told on stderr, unless BALLAST_LOG hides it.
TrainResult train(const std::string& config, const TrainCallbacks& callbacks = {},
                  const std::vector<std::string>& flags = {});

}  // namespace ballast::v1
