#pragma once

#include "core/tensor.h"
#include "plan/program_builder.h"

namespace ballast::ops {

// The tanh form: y = x (1 + tanh u) / 2, u = k (x + 0.044715 x^3), k = sqrt(2 / pi).
// x and y are f32 or bf16 of one shape, any rank, inner stride 1, rows evenly spaced. y may be x
// (same dtype and strides).
struct Gelu {
  ConstTensorView x;  // [..., C]
  TensorView y;       // [..., C]
};
void gelu(const Gelu& a, Stream stream);

// dx = dy gelu'(x), gelu'(x) = (1 + q) / 2 + x (1 - q^2) k (1 + 0.134145 x^2) / 2, q = tanh u.
// Everything is computed again from x. dx may be dy, or x (same dtype and strides).
// y = gelu(x) as well, if it is there, for who reads x once more otherwise; it may be x, dx then
// not.
struct GeluBackward {
  ConstTensorView x = {};   // [..., C]
  ConstTensorView dy = {};  // [..., C]
  TensorView dx = {};       // [..., C]
  TensorView y = {};        // [..., C], or none
};
void gelu_backward(const GeluBackward& a, Stream stream);

// Recorded forms.
Buffer gelu(ProgramBuilder& pb, Buffer x, DType y_dtype);
void gelu_into(ProgramBuilder& pb, Buffer x, Buffer y);
void gelu_backward_into(ProgramBuilder& pb, Buffer x, Buffer dy, Buffer dx, Buffer y = {});

}  // namespace ballast::ops
