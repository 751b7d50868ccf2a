#include "ops/attention/attention_cuda_workspace.h"

namespace ballast::ops::cuda {
namespace {

std::int64_t round_up(std::int64_t n, std::int64_t step) { return (n + step - 1) / step * step; }

bool is_sm_100(int sm) { return sm == 100 || sm == 103; }

}  // namespace

bool cudnn_has_attention(std::int64_t width, DType dtype, int sm) {
  return dtype == DType::bf16 && width % 8 == 0 && width <= (sm == 90 ? 256 : 128);
}

bool dq_sum_is_a_tensor(int sm) { return sm == 90 || is_sm_100(sm); }

// The numbers are those that cuDNN reports; tests/ops/attention/attention_graph_test.cpp asks it.
AttentionWorkspace attention_parts(const Shape& q, DType dtype, int sm) {
  if (!cudnn_has_attention(q[2], dtype, sm)) return {};
  return {.library = sm == 90 ? 256 : 0};
}

AttentionWorkspace attention_backward_parts(const Shape& q, std::int64_t keys, DType dtype, int sm,
                                            bool deterministic) {
  if (!cudnn_has_attention(q[2], dtype, sm)) return {};
  const std::int64_t queries = q[0], heads = q[1], width = q[2];
  AttentionWorkspace w = {.delta = heads * queries * 4};
  if (deterministic) {  // dS as a whole, bf16, in whole tiles of 64 or 128, by kernel and version
    w.library = 2 * heads * round_up(queries, 128) * round_up(keys, 128) + (sm == 90 ? 256 : 128);
  } else if (dq_sum_is_a_tensor(sm)) {
    w.library = sm == 90 ? 256 : 0;
    w.dq_sum = heads * queries * width * 4;
  } else {
    w.library = heads * round_up(queries, 8) * width * 4 + 128;
  }
  return w;
}

bool fused_has_attention(std::int64_t width, DType dtype) {
  return width == 64 && dtype == DType::bf16;
}

FusedParts fused_backward_parts(std::int64_t queries, std::int64_t heads, std::int64_t keys) {
  FusedParts p;
  p.strips = round_up(heads * queries * 4, 256);
  p.columns = round_up(keys, 64) + 16;
  p.bytes = p.strips + round_up(heads * (round_up(queries, 16) / 16) * p.columns * 4, 256);
  return p;
}

}  // namespace ballast::ops::cuda
