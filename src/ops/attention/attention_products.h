#pragma once

#include "core/dtype.h"
#include "core/shape.h"
#include "ops/attention/attention_cuda.h"
#include "ops/linear/linear_cuda.h"

// Attention on the GPU for short sequences with a bias, a mask, a length that only the run knows,
// or a dropout (whole_scores): by fused kernels where they can (attention_fused_cuda.h), elsewhere
// by matrix products over all heads, with the scores as a whole in memory.
namespace ballast::ops::cuda {

// Where scores [H, Lq, stride] stand in the workspace, in bytes behind its start.
struct ScoreOffsets {
  std::int64_t stride = 0;     // elements from row to row, a multiple of 8
  std::int64_t s = 0, dp = 0;  // f32
  std::int64_t p = 0, ds = 0;  // of the operands' type; f32 ones take the places of s and dp
  std::int64_t bytes = 0;
};
ScoreOffsets score_offsets(const Shape& q, std::int64_t keys, DType dtype, bool backward);

void attention_of_scores(const Attention& a, GpuQueue& queue, Doing doing);
void attention_backward_of_scores(const AttentionBackward& a, GpuQueue& queue, Doing doing);

}  // namespace ballast::ops::cuda
