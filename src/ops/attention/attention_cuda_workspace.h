#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "core/shape.h"
#include "ops/attention/attention_fused_cuda.h"
#include "plan/program.h"

// How attention runs on a GPU of some compute capability, and what memory that takes. Known without
// the GPU and without CUDA: plans are made with it.
namespace ballast::ops::cuda {

// cuDNN computes these; the plain kernel (attention_cuda.cu) all others. Views that are not aligned
// to 16 bytes go to the plain kernel, too, which needs no workspace.
bool cudnn_has_attention(std::int64_t width, DType dtype, int sm);

// The kernels of sm_90 and sm_100 add dq up in a tensor of ours, the older ones (which sm_120 gets,
// too) in their workspace.
bool dq_sum_is_a_tensor(int sm);

// The parts of a workspace, in bytes, in this order; each begins at a multiple of 256.
struct AttentionWorkspace {
  std::int64_t library = 0;  // cuDNN's own
  std::int64_t dq_sum = 0;   // dq before it is rounded, [H, Lq, D] f32
  std::int64_t delta = 0;    // rowsum(dout * o), [H, Lq] f32

  std::int64_t dq_sum_at() const { return aligned(library); }
  std::int64_t delta_at() const { return dq_sum_at() + aligned(dq_sum); }
  std::int64_t bytes() const { return delta_at() + aligned(delta); }

 private:
  static std::int64_t aligned(std::int64_t bytes) { return (bytes + 255) / 256 * 256; }
};

// q: [Lq, H, D]; keys: those that take part.
AttentionWorkspace attention_parts(const Shape& q, DType dtype, int sm);
AttentionWorkspace attention_backward_parts(const Shape& q, std::int64_t keys, DType dtype, int sm,
                                            bool deterministic);

// Of calls with whole_scores the fused kernels (attention_fused_cuda.h) compute these, products of
// matrices (attention_products.h) all others.
bool fused_has_attention(std::int64_t width, DType dtype);

FusedParts fused_backward_parts(std::int64_t queries, std::int64_t heads, std::int64_t keys);

}  // namespace ballast::ops::cuda
