#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/weight_files.h"
#include "models/wan/config.h"
#include "models/wan/params.h"
#include "nn/block_weights.h"
#include "plan/memory_plan.h"
#include "plan/runner.h"

namespace ballast::bench {

// Sizes of the block and of what passes through it.
struct BlockSize {
  wan::Config config;  // layers is 1
  std::int64_t tokens = 0;
  std::array<std::int64_t, 3> grid = {};  // tokens as frames, rows, columns
};

// dim 1536, 12 heads, ffn 8960, 512 text tokens: the block of Wan2.1 T2V 1.3B.
BlockSize block_size(std::int64_t tokens);

// The block's parameters with small random values in a safetensors file, matrices in `matrices`,
// vectors in f32.
void write_block(const std::string& path, const wan::Config& config, DType matrices);

struct BlockVariant {
  std::string_view name;
  WeightFormat format = WeightFormat::stored;
  // Forward and backward each bring the weights anew through one of two slots.
  bool streamed = false;
};

// A point in time by the clock and by what all threads of the process have computed.
struct Times {
  double wall = 0, cpu = 0;  // seconds
};
Times now();
inline Times operator-(const Times& a, const Times& b) { return {a.wall - b.wall, a.cpu - b.cpu}; }

// Forward and backward of one block with gradients of all its weights, ready to run.
class BlockRun {
 public:
  BlockRun(const BlockSize& size, const BlockVariant& variant, const WeightFiles& file, int threads,
           bool profiled);

  Times step() {
    const Times begin = now();
    runner_->run("step");
    return now() - begin;
  }
  // Of gemm and attention instructions, by their recorded cost.
  double flops() const { return flops_; }
  double attention_flops() const { return attention_flops_; }
  // By name of the operation, of all steps so far; empty unless profiled. Compute lane only.
  struct Spent {
    double seconds = 0, flops = 0;
    int calls = 0;
  };
  const std::map<std::string, Spent>& spent() const { return spent_; }
  void forget_spent() {
    for (auto& [name, s] : spent_) s = {};
  }
  const std::array<LaneTime, kLaneCount>& lane_times() const { return runner_->lane_times(); }

 private:
  void record(const WeightFiles& file);
  wan::BlockParams<Buffer> declare_gradients(ProgramBuilder& load);
  void fill_inputs();
  void count_flops();
  void time_instructions();

  BlockSize size_;
  BlockVariant variant_;
  ProgramSet set_;
  MemoryPolicy policy_;
  std::optional<BlockWeights> weights_;
  Buffer x_, dy_, context_, e0_, timestep_row_;
  MemoryPlan plan_;
  std::unique_ptr<Runner> runner_;
  double flops_ = 0, attention_flops_ = 0;
  std::map<std::string, Spent> spent_;
};

}  // namespace ballast::bench
