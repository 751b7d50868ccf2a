#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/error.h"
#include "models/wan/config.h"
#include "models/wan/dit_block.h"
#include "models/wan/params.h"
#include "nn/adapters.h"
#include "nn/block_weights.h"
#include "nn/column_sums.h"
#include "nn/gradients.h"
#include "nn/memory_policy.h"
#include "nn/optimizer.h"
#include "nn/update.h"
#include "ops/flow_loss.h"
#include "plan/program_builder.h"

namespace ballast::wan {

enum class Mode : std::uint8_t { infer, lora, full };
std::string_view name_of(Mode m);

// The samples of one step. Those of a training step may be cut into several runs of a program.
struct Batch {
  std::vector<LatentSize> latents;
  std::int64_t timestep_rows = 1;  // T: distinct timesteps; with noising one per sample

  friend bool operator==(const Batch&, const Batch&) = default;
};

// Where a step's noisy input and target come from.
enum class Noising : std::uint8_t {
  given,     // the host gives both
  recorded,  // the host gives the clean latent and the noise fraction; the step makes the noise
  prepared,  // the host gives both, and the sample's weight in the step's mean
};

// Step distillation over one frozen model: a first set of adapters makes it the student, a second
// one the critic, and without either it is the teacher. Programs of the critic are named
// "step.critic", its tensors "critic.blocks...".
struct DistilPrograms {
  bool guided = true;      // the teacher answers for the caption and for the empty one, in one run
  bool from_data = false;  // the clean latents of the dataset are kept beside what is made of them
  // What a step of the critic takes besides, on average:
  double student_share = 0.2;  // steps of the student
  double rollout_answers = 1;  // answers of the student until it has a sample
};

// Everything that decides what is recorded.
struct DitJob {
  Config config = {};
  std::string prefix = {};  // of the programs' names, where a set holds several models
  Mode mode = Mode::infer;
  MemoryPolicy policy = {};
  Precision precision = {};
  WeightFormat format = WeightFormat::stored;
  bool fp8_matmul = false;  // forward products of blocks in f8_e4m3 (see use_fp8_products())
  std::vector<Batch> batches = {};          // every kind of step there will be
  DataParallel parallel = {};               // how their samples are dealt out
  std::vector<Batch> eval_batches = {};     // the same for evaluation: forward pass and loss
  std::vector<Batch> predict_batches = {};  // forward passes beside training, on inputs as given
  Noising noising = Noising::given;
  ops::LossFunction loss = {};
  std::optional<DistilPrograms> distil = {};  // Mode::lora with Noising::prepared and one expert
  bool masks = false;                         // samples have loss masks
  bool prefetch = false;                      // a second set of inputs is filled while a step runs
  LoraOptions lora = {};
  bool adapters_in_inference = false;  // Mode::infer with LoRA factors applied
  bool input_gradients = false;        // also for latents and text states (Mode::full)
  bool record_update = false;          // the optimizer's programs too
  OptimizerOptions optimizer = {};
  double max_grad_norm = 0;  // 0: no clipping
};

// At multiples of how many tokens a job's policy may cut its work (ops/kernels/token_quantum.h).
std::int64_t row_unit(const DitJob& job);

// Turns a job to fp8 products: weights that are not f8_e4m3 in their file are brought to it with a
// scale per row. Fails with ErrorCode::usage when weights are trained or wanted in another format,
// with ErrorCode::device when the GPU has no units for it.
void use_fp8_products(DitJob& job, const Backend& backend);

// "bf16"; "fp8_rows, fp8 products".
std::string weights_text(const DitJob& job);

// Buffers that the host fills before a run and reads after it (host tier, except where said).
struct DitSampleIo {
  Buffer latent;        // [out, f, h, w] f32
  Buffer conditioning;  // [in - out, f, h, w] f32; invalid: none
  Buffer context;       // [S, X] f32, rows behind the text's end are zero
  Buffer timestep_row;  // [L] i32 on the device
  // [out, f, h, w] f32; training but with Noising::recorded. Of a distilled student half of where
  // its answer v is to go: the gradient by v is that of mean((0 - target)^2).
  Buffer target;
  Buffer noise_fraction;  // [1] f32: t; Noising::recorded
  Buffer mask;            // [f, h, w] f32: weight of the loss; DitJob::masks
  Buffer loss_weight;     // [1] f32: of the sample in the step's mean; Noising::recorded
  Buffer output;          // [out, f, h, w] f32; with Noising::recorded of predict_passes only
  Buffer kept_input;      // of the host's own, [out, f, h, w] f32, with DitJob::distil: what
  Buffer kept_answer;     //   the student saw and answered,
  Buffer clean;           //   and with from_data the dataset's latent
  Buffer dlatent;         // gradients, where asked for
  Buffer dcontext;
};

// One kind of run of the step program. Runs of all kinds share the memory of their inputs.
struct DitPassIo {
  Batch batch;
  Buffer timesteps;  // [T] f64
  std::vector<DitSampleIo> samples;
  std::vector<DitSampleIo> next;      // DitJob::prefetch: where the next run's inputs wait
  std::vector<std::string> programs;  // by expert
};

std::int64_t block_of(const AdapterIo& a);

// A part of a training step: samples [first, first + its batch's size) run as runs[run]. All of
// them belong to one column of DitJob::parallel.
struct StepPass {
  std::size_t run = 0;
  std::int64_t first = 0;
  std::int64_t column = 0;
};

struct DitIo {
  std::vector<DitPassIo> runs, eval_passes, predict_passes;
  // With DitJob::distil: predict_passes begin with one like each of runs; teacher_passes likewise
  // have its samples, and behind them, if guided, the same latents with the empty caption.
  std::vector<DitPassIo> teacher_passes;
  Buffer empty_context;  // [S, X] f32: of all these
  Buffer loss;           // [1] f64: of the last run, or of all since "zero_gradients"
  Buffer grad_norm;      // [1] f32, before clipping; with the update program only
  Buffer clip_factor;    // [1] f32, of the last norm; the update that follows multiplies by it
  std::vector<NamedGradient> gradients;
  std::vector<AdapterIo> adapters;     // those of a block lie in one buffer
  std::vector<UpdatedTensor> trained;  // with the update program only
};

// The diffusion transformer as recorded programs: "load", "step" (forward, and backward when
// training) for every kind of run, "eval" and "predict" likewise, "zero_gradients" where a step
// takes several runs, "init_state", "grad_norm", "update", "after_restore", "value_norm"; those of
// ColumnSums where a step has several columns;
// "teacher" where one is distilled. Two experts have one
// set of weight buffers between them and adapters of their own: "load.high_noise" brings the second
// one's weights.
class Dit {
 public:
  // groups: as each_parameter() lists them (see models/wan/weights.h), one list per expert.
  Dit(ProgramSet& set, DitJob job, std::vector<std::vector<WeightGroup>> experts,
      Taps* taps = nullptr);
  Dit(ProgramSet& set, DitJob job, std::vector<WeightGroup> groups, Taps* taps = nullptr)
      : Dit(set, std::move(job), std::vector<std::vector<WeightGroup>>{std::move(groups)}, taps) {}

  const DitIo& io() const { return io_; }
  const DitJob& job() const { return job_; }
  int experts() const { return experts_; }
  int adapter_sets() const { return job_.distil ? 2 : experts_; }  // of those that train
  // How the step of batches[b] is run by this rank, column by column, and by another one. All parts
  // of a column but one have the same size.
  std::vector<StepPass> passes(std::size_t b) const { return passes(b, job_.parallel.rank); }
  std::vector<StepPass> passes(std::size_t b, int rank) const;
  // Whether a step takes several runs, with "zero_gradients" before the first of each column.
  bool accumulates() const { return accumulates_; }
  // What a step does between and after its columns; nullptr: it has one.
  const ColumnSums* column_sums() const { return sums_ ? &*sums_ : nullptr; }

 private:
  bool trains() const { return job_.mode != Mode::infer; }

  void cut_batches();
  void declare_inputs(ProgramBuilder& pb);
  void declare_losses(ProgramBuilder& pb);
  DitSampleIo declare_sample(ProgramBuilder& pb, std::int64_t cells) const;
  void declare_step_values(ProgramBuilder& pb, DitSampleIo& slot, std::int64_t cells,
                           std::int64_t tokens) const;
  void declare_teacher_passes(ProgramBuilder& pb, const std::vector<DitSampleIo>& slots);
  DitSampleIo seen_as(ProgramBuilder& pb, DitSampleIo slot, const LatentSize& z) const;
  void declare_adapters(ProgramBuilder& pb);
  void declare_gradients(ProgramBuilder& pb);
  void declare_column_sums(ProgramBuilder& pb);
  void record_zero_gradients();

  ProgramSet& set_;
  DitJob job_;
  int experts_;
  DitIo io_;
  std::optional<BlockWeights> weights_;
  // By expert, by group; of adapters, all of a block in one buffer.
  std::vector<std::vector<GroupGradients>> gradients_;
  std::vector<std::vector<StepPass>> passes_;  // by batch
  std::vector<Buffer> loss_sums_;  // by set of adapters, [1] f64 on the device; accumulating only
  bool accumulates_ = false;
  std::optional<ColumnSums> sums_;
};

// Where programs of a second expert are named after it: "update", "update.high_noise".
std::string expert_program(std::string_view name, int expert);
// The same of the second set of adapters, which may be a critic's: "update.critic".
std::string set_program(const DitJob& job, std::string_view name, int set);
std::string set_prefix(const DitJob& job, int set);  // of names: "", "high_noise.", "critic."
// The name of run r of a kind: "predict", "predict.1".
std::string run_program(std::string_view name, std::size_t r);

}  // namespace ballast::wan
