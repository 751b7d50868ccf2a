#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <string_view>
#include <vector>

// Attention as cuDNN sees it: the graphs, and what may be asked about them without a GPU.
namespace ballast::ops::cuda {

class CudnnGraph;

// The ids of the graphs' tensors, which also index arrays.
enum AttentionTensor : std::int64_t {
  kQ = 1,
  kK,
  kV,
  kO,
  kLse,
  kDout,
  kDq,
  kDk,
  kDv,
  kDelta,  // rowsum(dout * o), [H, Lq] f32, dense
  kDqSum,  // dq before it is rounded, [H, Lq, D] f32, dense
  kScale,  // host floats
  kOne,
  kAttentionTensors,
};

// One graph: bf16 tensors [L, H, D] of these sizes and strides (in elements), D dense.
struct AttentionGraph {
  struct Strides {
    std::int64_t row = 0, head = 0;
    auto operator<=>(const Strides&) const = default;
  };

  bool backward = false;
  bool deterministic = true;    // backward: dq is summed in a fixed order
  bool dq_sum_is_ours = false;  // backward, not deterministic: kDqSum is a tensor, not workspace
  std::int64_t queries = 0, keys = 0, heads = 0, width = 0;
  std::int64_t lse_head = 0;               // stride of the heads of lse; queries are dense
  std::array<Strides, kDv + 1> strides{};  // by AttentionTensor; kLse unused

  auto operator<=>(const AttentionGraph&) const = default;
};

CudnnGraph attention_graph(const AttentionGraph& a);
// The ids that a pack of this graph names.
std::vector<std::int64_t> attention_tensors(const AttentionGraph& a);

// Workspace bytes of each configuration that cuDNN offers for a GPU with these properties (JSON,
// every key that cuDNN knows), best first. Needs cuDNN and any libcuda.so.1, no GPU.
std::vector<std::int64_t> offered_workspaces(const AttentionGraph& a,
                                             std::string_view gpu_properties);

}  // namespace ballast::ops::cuda
