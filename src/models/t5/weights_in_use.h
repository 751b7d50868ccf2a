#pragma once

#include <span>
#include <vector>

#include "core/to_size.h"
#include "models/t5/block.h"
#include "models/t5/params.h"
#include "nn/block_weights.h"

namespace ballast::t5 {

// The model's weights as one program sees them: brings groups where they are used, and keeps what
// is small and used by many blocks (bias tables) in reach all the time.
class WeightsInUse {
 public:
  WeightsInUse(const Config& config, BlockWeights& weights) : config_(config), weights_(weights) {}

  // At the program's start and end.
  void begin(ProgramBuilder& pb);
  void end(ProgramBuilder& pb) { weights_.end_program(pb); }

  // The gradients of a group that backward adds to, in the order of its tensors; empty: frozen.
  using Gradients = std::span<const Buffer>;

  BlockInUse block(ProgramBuilder& pb, Side side, std::int64_t block, Gradients gradients = {});
  Gain final_norm(Side side, Gradients small = {}) const;
  Buffer table(Side side, std::int64_t block) const;  // [buckets, H] f32
  Buffer table_gradient(Side side, std::int64_t block, Gradients small) const;
  // [V, C]: of the embedding and of the head. An encoder alone has neither.
  WeightBuffers embedding(ProgramBuilder& pb);
  WeightBuffers head(ProgramBuilder& pb);

 private:
  struct Stack {
    Buffer norm;
    std::vector<Buffer> tables;
    std::size_t first = 0;  // number of its norm in the group
  };
  const Stack& stack(Side side) const { return stacks_[to_size(side)]; }
  std::size_t table_index(std::int64_t block) const {
    return config_.bias_per_block ? to_size(block) : 0;
  }

  const Config& config_;
  BlockWeights& weights_;
  Stack stacks_[2];
};

}  // namespace ballast::t5
