#pragma once

#include <span>

#include "core/tensor.h"
#include "plan/program_builder.h"

namespace ballast::ops {

// The 2-norm over many tensors and the clipping factor that follows from it: sum_squares once per
// tensor into one sum, clip_factor once, then scale_by (or adamw's grad_scale) with the factor.

// sum += sum of x^2, in f64, group by group in order (ops/kernels/ordered_sum.h): parts cut at
// multiples of kSumGroup elements give the same bits as the whole. Several tensors of one type are
// summed in their order, on a GPU kSquareTensors of them with one launch: to begin one takes longer
// than a small tensor's sum.
struct SumSquares {
  ConstTensorView x;  // f32 or bf16, contiguous
  TensorView sum;     // [1] f64, added to
};
void sum_squares(const SumSquares& a, Stream stream);
void sum_squares(std::span<const ConstTensorView> x, const TensorView& sum, Stream stream);

// norm = sqrt(sum);  factor = min(1, max_norm / (norm + 1e-6)), 1 when max_norm <= 0. A norm that
// is not a number gives such a factor: the gradients show what happened.
struct ClipFactor {
  ConstTensorView sum;  // [1] f64
  double max_norm;
  TensorView factor;  // [1] f32
  TensorView norm;    // [1] f32, optional
};
void clip_factor(const ClipFactor& a, Stream stream);

// x *= factor
struct ScaleBy {
  ConstTensorView factor;  // [1] f32
  TensorView x;            // f32 or bf16, contiguous
};
void scale_by(const ScaleBy& a, Stream stream);

// The norm of a product of two thin matrices, and what both are multiplied with to keep it within a
// limit:
//   norm = ||scale B A|| = scale * sqrt(sum of ga * gb),  ga = A A^T, gb = B^T B;
//   factor = norm > max_norm ? sqrt(max_norm / norm) : 1.
// The sum is kept in f64, block by block in order (ops/kernels/ordered_sum.h).
struct LimitFactor {
  ConstTensorView ga, gb;  // [r, r] f32, contiguous
  double scale;
  double max_norm;
  TensorView factor;  // [1] f32
};
void limit_factor(const LimitFactor& a, Stream stream);

// scratch: sum_squares_scratch(), shared by the calls of one norm, so that buffers which visit the
// device between them do not wait for its memory.
Buffer sum_squares_scratch(ProgramBuilder& pb, Buffer sum);
void sum_squares(ProgramBuilder& pb, Buffer x, Buffer sum, Buffer scratch);
void sum_squares(ProgramBuilder& pb, std::span<const Buffer> x, Buffer sum,
                 Buffer scratch);  // of any types
void clip_factor(ProgramBuilder& pb, Buffer sum, double max_norm, Buffer factor, Buffer norm);
void scale_by(ProgramBuilder& pb, Buffer factor, Buffer x);
void limit_factor(ProgramBuilder& pb, Buffer ga, Buffer gb, double scale, double max_norm,
                  Buffer factor);
// a: [r, K], b: [N, r], f32 or bf16, contiguous. Both are scaled so that ||scale b a|| <= max_norm,
// but for the rounding of their elements.
void limit_norm(ProgramBuilder& pb, Buffer a, Buffer b, double scale, double max_norm);

}  // namespace ballast::ops
