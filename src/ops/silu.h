#pragma once

#include "core/tensor.h"
#include "plan/program_builder.h"

namespace ballast::ops {

// y = x s, s = sigmoid(x) = 1 / (1 + e^-x).
// x and y are f32 or bf16 of one shape, any rank, inner stride 1, rows evenly spaced. y may be x
// (same dtype and strides).
struct Silu {
  ConstTensorView x;  // [..., C]
  TensorView y;       // [..., C]
};
void silu(const Silu& a, Stream stream);

// dx = dy silu'(x), silu'(x) = s (1 + x (1 - s)).
// Everything is computed again from x. dx may be dy, or x (same dtype and strides).
struct SiluBackward {
  ConstTensorView x;   // [..., C]
  ConstTensorView dy;  // [..., C]
  TensorView dx;       // [..., C]
};
void silu_backward(const SiluBackward& a, Stream stream);

// Recorded forms.
Buffer silu(ProgramBuilder& pb, Buffer x, DType y_dtype);
void silu_into(ProgramBuilder& pb, Buffer x, Buffer y);
void silu_backward_into(ProgramBuilder& pb, Buffer x, Buffer dy, Buffer dx);

}  // namespace ballast::ops
