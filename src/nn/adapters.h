#pragma once

#include <string>
#include <vector>

#include "core/dtype.h"
#include "plan/program_builder.h"

namespace ballast {

// Low-rank adapters beside the matrices of blocks, y += scale B A x; the weights do not change.
struct LoraOptions {
  std::int64_t rank = 16;
  float alpha = 16;
  // See ops::LoraDropout: of the input, of the ranks' values, of ranks, of whole adapters.
  double dropout = 0, hidden_dropout = 0, rank_dropout = 0, module_dropout = 0;
  DType dtype = DType::f32;  // of the factors; their gradients are f32
  double up_rate = 1;        // learning rate of B over that of A (LoRA+)
  double max_norm = 0;       // of scale B A after an update; 0: no limit
  // Modules with an adapter. Of T5 by the last parts of their names (empty: all) or, where given,
  // by their full names; of Wan all but these: "blocks.0.self_attn.q".
  std::vector<std::string> targets = {}, modules = {}, excluded = {};

  float scale() const { return alpha / static_cast<float>(rank); }
  bool drops() const {
    return dropout > 0 || hidden_dropout > 0 || rank_dropout > 0 || module_dropout > 0;
  }
};

// One adapter: parts of persistent device buffers that hold several. Gradients likewise, f32, on
// the device or the host.
struct AdapterIo {
  std::string name;  // "blocks.0.self_attn.q"
  int expert = 0;    // with several sets of adapters: whose it is
  Buffer a, b;       // [rank, K], [N, rank]: the caller's to fill before the first step
  Buffer da, db;     // only where it trains
};

}  // namespace ballast
