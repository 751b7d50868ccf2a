#pragma once

#include <vector>

#include "models/t5/seq2seq.h"

namespace ballast::t5 {

// Records one step program of the encoder-decoder: forward and loss, and backward when weights
// train. All samples share a visit of each block; gradients add up in their order.
class Seq2SeqPass {
 public:
  Seq2SeqPass(const Seq2SeqJob& job, BlockWeights& weights, std::vector<GroupGradients>& gradients,
              const StepIo& io, Buffer label_weight);

  void record(ProgramBuilder& pb);

 private:
  // One stack of one sample.
  struct StackState {
    std::int64_t tokens = 0;
    Buffer ids;                   // [L] i32 on the device
    Buffer x;                     // residual stream
    Buffer r;                     // of the final norm
    Buffer dx;                    // gradient of the residual stream
    Buffer dbias;                 // [H, 2 L - 1] over all blocks, where they share a table
    std::vector<BlockKept> kept;  // by block
  };
  struct SampleState {
    StackState stacks[2];
    Buffer states;   // [S, C] what cross-attention reads
    Buffer dstates;  // [S, C] f32
    Buffer y;        // [T, C] what the head reads
    Buffer dy;
    Buffer labels;
  };
  StackState& stack(SampleState& s, Side side) const {
    return s.stacks[static_cast<std::size_t>(side)];
  }

  void upload_inputs(ProgramBuilder& pb);
  void embed(ProgramBuilder& pb);
  void forward_block(ProgramBuilder& pb, Side side, std::int64_t block);
  void end_encoder(ProgramBuilder& pb);
  void head_and_loss(ProgramBuilder& pb);
  void backward_block(ProgramBuilder& pb, Side side, std::int64_t block);
  void backward_stack(ProgramBuilder& pb, Side side);
  void embed_backward(ProgramBuilder& pb);

  BlockKept what_stays(ProgramBuilder& pb, const BlockKept& all) const;
  void restore(ProgramBuilder& pb, Side side, const BlockInUse& w, const SampleState& s,
               Buffer bias, BlockKept& kept) const;

  void begin_gradients(ProgramBuilder& pb, int group);
  void end_gradients(ProgramBuilder& pb, int group);
  WeightsInUse::Gradients gradients(int group) const;

  const Seq2SeqJob& job_;
  const Config& config_;
  std::vector<GroupGradients>& gradients_;
  const StepIo& io_;
  Buffer label_weight_;
  BlockLayers layers_;
  WeightsInUse weights_;
  std::vector<SampleState> samples_;
};

}  // namespace ballast::t5
