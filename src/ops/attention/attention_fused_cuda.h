#pragma once

#include "ops/attention/attention_cuda.h"

// Attention of short sequences in own kernels, with all that T5 needs: a bias by distance, a mask,
// lengths that only the run knows, a dropout, gradients with the same bits in every run. For bf16
// and heads of 64 (attention_cuda_workspace.h); scores never leave the multiprocessor.
namespace ballast::ops::cuda {

void fused_attention(const Attention& a, void* stream);

// Backward's workspace, in bytes behind its start.
struct FusedParts {
  std::int64_t delta = 0;  // rowsum(dout * o), [H, Lq] f32
  // Sums of dS along diagonals over 16 queries each: [H, Lq / 16, columns] f32. With
  // n the first of those queries, column c is for keys and queries with j - i = c - n - 15.
  std::int64_t strips = 0;
  std::int64_t columns = 0;
  std::int64_t bytes = 0;
};
void fused_attention_backward(const AttentionBackward& a, const FusedParts& parts, void* stream);

}  // namespace ballast::ops::cuda
