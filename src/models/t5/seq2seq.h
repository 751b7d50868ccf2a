#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/t5/adapters.h"
#include "models/t5/block.h"
#include "models/t5/config.h"
#include "models/t5/decoder.h"
#include "models/t5/weights_in_use.h"
#include "nn/gradients.h"
#include "nn/update.h"

namespace ballast::t5 {

// One kind of step: so many micro-batches of so many samples, all padded to one source and one
// target length. Rows of all samples of a micro-batch go through every layer as one product;
// micro-batches share the visits of blocks, which pays where weights stream, and add up their
// gradients in order, as separate runs would.
//
// Padding stands behind the tokens. Source rows from source_lengths on are no keys of any
// attention; target rows behind the text have labels that do not count and, since the decoder looks
// back only, nobody reads them. So losses, states and logits of real tokens have the same bits
// whatever the padding, and gradients differ by the rounding of longer sums of zeros.
struct BatchShape {
  std::int64_t samples = 0, source = 0, target = 0;
  std::int64_t micro_batches = 1;

  friend bool operator==(const BatchShape&, const BatchShape&) = default;
};

// Texts that are written token by token between steps, with the weights as they then are.
struct TextWriting {
  std::int64_t beams = 1;
  std::int64_t positions = 0;  // most tokens of a text
};

// Everything that decides what is recorded of an encoder-decoder.
struct Seq2SeqJob {
  Config config = {};
  MemoryPolicy policy = {};
  Precision precision = {};
  WeightFormat format = WeightFormat::stored;
  bool trains =
      false;  // all weights, or adapters; gradients and, with record_update, the optimizer
  std::optional<LoraOptions> lora = {};           // adapters: they take part in evaluations, too
  std::vector<BatchShape> batches = {};           // every kind of step there will be
  std::vector<BatchShape> eval_batches = {};      // the same for evaluation: forward pass and loss
  std::optional<TextWriting> writes = {};         // for sources as long as those of evaluation
  bool keep_states = false, keep_logits = false;  // also given to the host; of `batches`
  double dropout = 0;                             // of training steps
  // Several runs add to the gradients, after "zero_gradients"; else every step begins anew.
  bool accumulates = false;
  DType gradient = DType::f32;  // of the blocks' matrices; all other gradients are f32
  bool record_update = false;
  OptimizerOptions optimizer = {};
  // Of the token table and the tables of relative biases with an 8-bit optimizer. transformers'
  // Trainer registers every nn.Embedding with bitsandbytes as 32-bit.
  MomentBits embedding_moments = MomentBits::always_32;
  double max_grad_norm = 0;  // 0: no clipping
};

// What the host gives before a step and takes after it (host tier). Rows of a sample follow those
// of the one before it.
struct MicroBatchIo {
  Buffer source;          // [samples, S] i32; any row of the table behind the text
  Buffer source_lengths;  // [samples] i32, 1 to S
  Buffer decoder_input;   // [samples, T] i32: the labels one to the right, behind the start token
  Buffer labels;          // [samples, T] i32; negative: does not count
  // [1] f32: weight of a label in the loss, such as 1 / how many count in the whole optimizer step.
  // The loss is the sum of all losses times this.
  Buffer label_weight;
  Buffer losses;  // [samples, T] f32, 0 where a label does not count
  Buffer states;  // [samples * S, C] f32; keep_states
  Buffer logits;  // [samples * T, V] f32; keep_logits
};
struct StepIo {
  std::string program;  // "step", "step.1", ...; "eval", "eval.1", ...
  BatchShape shape;
  std::vector<MicroBatchIo> micro_batches;
};

struct Seq2SeqIo {
  std::vector<StepIo> steps, eval_steps;  // by kind of batch; all share memory
  std::vector<NamedGradient> gradients;
  std::vector<AdapterIo> adapters;
  std::vector<UpdatedTensor> trained;  // with record_update only
  Buffer grad_norm;                    // [1] f32, before clipping; likewise
};

// Matrices of a group have one buffer; vectors and tables lie among the small ones of all groups.
struct PackedGradients : GroupGradients {
  struct Gap {
    std::uint64_t offset = 0, bytes = 0;
  };
  Buffer matrices;        // all of them, persistent, on the device or the host
  Buffer visiting;        // the temporary that takes their place in backward
  std::vector<Gap> gaps;  // between matrices
};

// T5 as recorded programs: "load", "step" for every kind of batch (forward and loss; with `trains`
// also backward), "eval" for every kind of evaluation, those of a decoder where it writes, with
// accumulates "zero_gradients", and with record_update "init_state", "after_restore", "grad_norm",
// "update", "value_norm". Runs take from StepValues the seed, the number of the step and
// first_sample, on which dropout depends: the same samples drop the same elements however a step is
// cut into runs.
class Seq2Seq {
 public:
  // groups: as each_parameter() lists them (models/t5/weights.h).
  Seq2Seq(ProgramSet& set, Seq2SeqJob job, std::vector<WeightGroup> groups);

  const Seq2SeqIo& io() const { return io_; }
  const Seq2SeqJob& job() const { return job_; }
  const Decoder* decoder() const { return decoder_.get(); }  // where it writes

 private:
  void declare_io(ProgramBuilder& pb);
  void declare_gradients(ProgramBuilder& pb);
  std::vector<UpdatedTensor> trained_weights(ProgramBuilder& pb) const;
  std::vector<UpdatedTensor> trained_adapters() const;
  void declare_decoder(ProgramBuilder& pb);
  void record_updates(ProgramSet& set);

  Seq2SeqJob job_;
  Seq2SeqIo io_;
  std::optional<BlockWeights> weights_;
  std::vector<PackedGradients> gradients_;  // by group; empty: no weight trains
  Buffer small_gradients_;                  // of vectors and tables of all groups, or of adapters
  Adapters adapters_;
  std::unique_ptr<Decoder> decoder_;
};

}  // namespace ballast::t5
