#pragma once

#include <cstdint>

#include "ops/kernels/cuda_view.h"
#include "ops/kernels/random_cuda.h"

namespace ballast {
class GpuQueue;
}

namespace ballast::ops::cuda {

// As ops/attention/attention.h says, and what only the plain kernel does so far: with a bias,
// S = scale q k^T + bias; causal: query i sees keys <= i. Where data is null there is no bias.
struct AttentionDrop {
  bool on = false;
  RandomKey source = {};
  std::uint32_t threshold = 0;
  float scale = 1;
  std::int64_t first_head = 0;
};

// As AttentionSamples says.
struct ScoreSamples {
  static constexpr int kMax = 64;
  std::int64_t heads = 0, first = 0;
  std::int32_t lengths[kMax] = {};
  std::uint32_t sites[kMax] = {};
};

struct Attention {
  View q;     // [Lq, H, D], f32 or bf16
  View k, v;  // [Lk, H, D]
  View o;     // [Lq, H, D], written
  View lse;   // [H, Lq] f32, written
  View workspace;
  View bias;  // [H, Lq, Lk], f32 or bf16, any strides
  float scale = 1;
  std::int64_t kv_length = 0;
  bool causal = false;
  bool whole_scores = false;  // then a bias has strides -1 and 1
  AttentionDrop drop = {};    // with whole_scores only
  ScoreSamples samples = {};  // likewise: then kv_length plays no part
};

// dbias = dS = P * (dout v^T - delta), 0 where a key takes no part.
struct AttentionBackward {
  View q, k, v, o, lse, dout;
  View dq, dk, dv;  // written
  View workspace;
  View bias;
  View dbias;            // [H, Lq, Lk], f32 or bf16, any strides; written
  View dbias_sums = {};  // [H, Lq + Lk - 1] f32: sums of dS along diagonals are added to it
  float scale = 1;
  std::int64_t kv_length = 0;
  bool causal = false;
  bool deterministic = true;  // of cuDNN; the plain kernel always is
  bool whole_scores = false;
  AttentionDrop drop = {};
  ScoreSamples samples = {};
};

// With whole_scores by matrix products (attention_products_cuda.cpp); else by cuDNN where it can
// (attention_cuda_workspace.h), by the plain kernel elsewhere.
void attention(const Attention& a, GpuQueue& queue);
void attention_backward(const AttentionBackward& a, GpuQueue& queue);

// Make what the same call with the same addresses runs with, so that it makes nothing.
void prepare_attention(const Attention& a, GpuQueue& queue);
void prepare_attention_backward(const AttentionBackward& a, GpuQueue& queue);

// One kernel for every width up to kPlainWidth, every alignment and every length: for correctness,
// not for speed. No workspace, fixed order of all sums.
inline constexpr std::int64_t kPlainWidth = 256;
void plain_attention(const Attention& a, void* stream);
void plain_attention_backward(const AttentionBackward& a, void* stream);

// x = 0 from row `first` on; x: [L, H, D], f32 or bf16.
void zero_rows(const View& x, std::int64_t first, void* stream);

}  // namespace ballast::ops::cuda
