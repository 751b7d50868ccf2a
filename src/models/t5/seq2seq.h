#pragma once

#include <optional>
#include <string>
#include <vector>

#include "models/t5/block.h"
#include "models/t5/config.h"
#include "models/t5/weights_in_use.h"
#include "nn/update.h"

namespace ballast::t5 {

// Tokens of one sample. Padding does not exist: every sample is computed with its own lengths.
struct PairLength {
  std::int64_t source = 0, target = 0;

  friend bool operator==(const PairLength&, const PairLength&) = default;
};

// Everything that decides what is recorded of an encoder-decoder.
struct Seq2SeqJob {
  Config config = {};
  MemoryPolicy policy = {};
  Precision precision = {};
  WeightFormat format = WeightFormat::stored;
  bool trains = false;  // all weights; gradients and, with record_update, the optimizer
  std::vector<std::vector<PairLength>> batches = {};  // every kind of step there will be
  bool keep_states = false, keep_logits = false;      // also given to the host
  bool record_update = false;
  OptimizerOptions optimizer = {};
  double max_grad_norm = 0;  // 0: no clipping
};

// What the host gives before a step and takes after it (host tier).
struct PairIo {
  Buffer source;         // [S] i32
  Buffer decoder_input;  // [T] i32: the labels one to the right, behind the start token
  Buffer labels;         // [T] i32; negative: does not count
  Buffer losses;         // [T] f32, 0 where a label does not count
  Buffer states;         // [S, C] f32; keep_states
  Buffer logits;         // [T, V] f32; keep_logits
};
struct StepIo {
  std::string program;
  std::vector<PairIo> samples;
};

struct NamedGradient {
  std::string name;
  Buffer gradient;  // f32; device or host
};

struct Seq2SeqIo {
  std::vector<StepIo> steps;  // by kind of batch; they share memory
  // [1] f32: weight of a label in the loss, 1 / how many count in the whole optimizer step. The
  // loss is the sum of all losses times this.
  Buffer label_weight;
  std::vector<NamedGradient> gradients;
  std::vector<UpdatedTensor> trained;  // with record_update only
  Buffer grad_norm;                    // [1] f32, before clipping; likewise
};

// Gradients of one group and where they wait.
struct GroupGradients {
  std::vector<Buffer> home;    // persistent, on the device or the host
  std::vector<Buffer> device;  // where backward adds to them: the same, or a temporary
};

// T5 as recorded programs: "load", "step" for every kind of batch (forward and loss; with `trains`
// also backward), and with record_update "init_state", "after_restore", "grad_norm", "update".
class Seq2Seq {
 public:
  // groups: as each_parameter() lists them (models/t5/weights.h).
  Seq2Seq(ProgramSet& set, Seq2SeqJob job, std::vector<WeightGroup> groups);

  const Seq2SeqIo& io() const { return io_; }
  const Seq2SeqJob& job() const { return job_; }

 private:
  void declare_io(ProgramBuilder& pb);
  void declare_gradients(ProgramBuilder& pb);
  void record_updates(ProgramSet& set);

  Seq2SeqJob job_;
  Seq2SeqIo io_;
  std::optional<BlockWeights> weights_;
  std::vector<GroupGradients> gradients_;  // by group; empty: nothing trains
};

}  // namespace ballast::t5
