#pragma once

#include <string>
#include <vector>

#include "models/t5/block.h"
#include "models/t5/params.h"
#include "nn/block_weights.h"

namespace ballast::t5 {

// Low-rank adapters beside the matrices of blocks; the weights themselves do not change.
struct LoraOptions {
  std::int64_t rank = 16;
  float alpha = 16;
  std::vector<std::string> targets = {"q", "k", "v", "o", "wi", "wo"};  // wi: also wi_0 and wi_1
  double dropout = 0;                     // of what an adapter reads, in steps that train
  std::vector<std::string> modules = {};  // not empty: these by their full names, no others

  float scale() const { return alpha / static_cast<float>(rank); }
};

// Parameters of the adapters that such options give a model of these weights.
std::int64_t adapter_parameters(const Config& config, std::span<const WeightGroup> groups,
                                const LoraOptions& options);

// One adapter: y += scale B A x. All lie together on the device, f32; so do the gradients.
struct AdapterIo {
  std::string name;  // "encoder.block.0.layer.0.SelfAttention.q"
  Buffer a, b;       // [rank, K], [N, rank]: the caller's to fill before the first step
  Buffer da, db;     // only where it trains
};

// The adapters of a recorded model.
class Adapters {
 public:
  // Fails with ErrorCode::usage when no matrix is a target. trains: gradients as well.
  void declare(ProgramBuilder& pb, const Config& config, const BlockWeights& weights,
               const LoraOptions& options, bool trains);

  bool empty() const { return all_.empty(); }
  const std::vector<AdapterIo>& all() const { return all_; }
  Buffer gradients() const { return gradients_; }  // of all; invalid: none train

  enum class Use : std::uint8_t {
    infer,     // nothing drops
    forward,   // of a step that trains
    backward,  // of the same, with gradients
  };
  // Puts the block's adapters beside its matrices.
  void attach(BlockInUse& block, const Config& config, Side side, std::int64_t number,
              Use use) const;

 private:
  LoraOptions options_;
  std::vector<AdapterIo> all_;
  std::vector<std::vector<int>> of_;  // by group and tensor: number in all_, or -1
  Buffer gradients_;
};

}  // namespace ballast::t5
