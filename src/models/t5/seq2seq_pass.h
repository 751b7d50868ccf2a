#pragma once

#include <vector>

#include "core/to_size.h"
#include "models/t5/seq2seq.h"

namespace ballast::t5 {

// Records one step program of the encoder-decoder: forward and loss, and backward when weights
// train. All micro-batches share a visit of each block; gradients add up in their order.
class Seq2SeqPass {
 public:
  // trains: this program; with job.trains evaluations do not.
  Seq2SeqPass(const Seq2SeqJob& job, BlockWeights& weights, std::vector<PackedGradients>& gradients,
              const Adapters& adapters, const StepIo& io, bool trains);

  void record(ProgramBuilder& pb);

 private:
  // One stack of one micro-batch; rows of all samples together, by position.
  struct StackState {
    std::int64_t tokens = 0;      // of a sample
    Buffer ids;                   // [rows] i32 on the device
    Buffer x;                     // residual stream
    Buffer r;                     // of the final norm
    Buffer dx;                    // gradient of the residual stream
    Buffer dbias;                 // [H, 2 L - 1] over all blocks, where they share a table
    std::vector<BlockKept> kept;  // by block
  };
  struct MicroBatch {
    StackState stacks[2];
    Buffer states;   // [rows, C] what cross-attention reads
    Buffer dstates;  // [rows, C] f32
    Buffer y;        // [rows, C] what the head reads
    Buffer dy;
    Buffer labels, label_weight;
    Buffer lengths;  // of the sources, in host memory
    std::int64_t first_sample = 0;
  };
  StackState& stack(MicroBatch& m, Side side) const { return m.stacks[to_size(side)]; }
  std::int64_t rows(const StackState& t) const { return io_.shape.samples * t.tokens; }
  RowsOfSamples rows_of(const MicroBatch& m, Side side, const std::string& site,
                        bool cross = false) const;
  RowsOfSamples rows_of(const MicroBatch& m, Side side, std::int64_t block,
                        bool cross = false) const;
  // Adds up over blocks of a stack, or of one block.
  Buffer stack_bias(ProgramBuilder& pb, Side side, std::int64_t block);
  bool keeps_all(Side side, std::int64_t block) const;
  // The block's weights with their adapters.
  BlockInUse use_block(ProgramBuilder& pb, Side side, std::int64_t block, bool backward);
  // Adapters drop other numbers in every micro-batch.
  void use_for(BlockInUse& w, const MicroBatch& m) const;

  void upload_inputs(ProgramBuilder& pb);
  void embed(ProgramBuilder& pb);
  void forward_block(ProgramBuilder& pb, Side side, std::int64_t block);
  void end_encoder(ProgramBuilder& pb);
  void head_and_loss(ProgramBuilder& pb);
  void take(ProgramBuilder& pb, Buffer rows, Buffer to) const;
  void backward_block(ProgramBuilder& pb, Side side, std::int64_t block);
  void backward_stack(ProgramBuilder& pb, Side side);
  void embed_backward(ProgramBuilder& pb);

  BlockKept what_stays(ProgramBuilder& pb, const BlockKept& all, bool everything) const;
  void restore(ProgramBuilder& pb, Side side, std::int64_t block, const BlockInUse& w,
               const MicroBatch& m, Buffer bias, BlockKept& kept) const;

  void begin_gradients(ProgramBuilder& pb, int group);
  void end_gradients(ProgramBuilder& pb, int group);
  WeightsInUse::Gradients gradients(int group) const;

  const Seq2SeqJob& job_;
  const Config& config_;
  std::vector<PackedGradients>& gradients_;
  const StepIo& io_;
  bool trains_;
  bool weights_train_;  // the weights themselves
  const Adapters& adapters_;
  BlockLayers layers_;
  WeightsInUse weights_;
  std::vector<MicroBatch> micro_batches_;
  Buffer bias_[2];  // of the stacks, where blocks share a table
};

}  // namespace ballast::t5
