#pragma once

#include "ops/attention/attention_cuda.h"

// Kernels between the products of attention (attention_products_cuda.cpp).
namespace ballast::ops::cuda {

// What turns products q k^T into the scores of keys that take part.
struct ScoreRule {
  std::int64_t heads = 0, queries = 0;   // heads: of all samples
  std::int64_t columns = 0, stride = 0;  // keys; elements from row to row
  const float* bias = nullptr;           // entry h * bias_head - i + j of a sample's head, or none
  std::int64_t bias_head = 0;
  bool causal = false;
  AttentionDrop drop = {};
  ScoreSamples samples = {};  // whose lengths say which keys take part
};

// P = e^(S - lse), what the dropout leaves of it, and lse = log(sum(e^S)). Columns of keys that
// take no part become 0, up to the stride.
struct SoftenScores {
  const float* s = nullptr;  // [H, Lq, stride]
  void* p = nullptr;         // [H, Lq, stride] f32 (may be s) or bf16
  DType dtype = DType::bf16;
  float* lse = nullptr;
  std::int64_t lse_head = 0;
  ScoreRule rule;
};
void soften_scores(const SoftenScores& a, void* stream);

// The same P, and dS = P (dP - delta) with dP as the dropout leaves it, delta = rowsum(dout * o).
struct SoftenBackward {
  const float* s = nullptr;
  const float* dp = nullptr;
  void* p = nullptr;
  void* ds = nullptr;  // may be dp
  View o, dout;        // [Lq, H, D]
  const float* lse = nullptr;
  std::int64_t lse_head = 0;
  ScoreRule rule;
};
void soften_backward(const SoftenBackward& a, void* stream);

// sums[h, j - i + Lq - 1] += dS[h, i, j] of every sample, in order.
struct AddDiagonals {
  const void* ds = nullptr;
  DType dtype = DType::bf16;
  float* sums = nullptr;
  std::int64_t sums_head = 0;
  std::int64_t heads = 0, queries = 0, columns = 0, stride = 0;
  std::int64_t sample_heads = 0, first = 0;  // as in ScoreSamples
};
void add_diagonals(const AddDiagonals& a, void* stream);

}  // namespace ballast::ops::cuda
