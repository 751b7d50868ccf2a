#pragma once

#include <string>
#include <vector>

#include "models/t5/block.h"
#include "models/t5/params.h"
#include "nn/adapters.h"
#include "nn/block_weights.h"

namespace ballast::t5 {

// Targets of the options, or all that there are: q, k, v, o, wi (also wi_0 and wi_1), wo.
std::vector<std::string> adapter_targets(const LoraOptions& options);

// Parameters of the adapters that such options give a model of these weights.
std::int64_t adapter_parameters(const Config& config, std::span<const WeightGroup> groups,
                                const LoraOptions& options);

// The adapters of a recorded model, f32: all lie together on the device, and so do the gradients.
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
