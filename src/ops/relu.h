#pragma once

#include "core/tensor.h"
#include "plan/program_builder.h"

namespace ballast::ops {

// y = max(x, 0); a NaN becomes 0. x and y are f32 or bf16, [R, C], inner stride 1, any row stride.
// y may be x (same dtype and strides).
struct Relu {
  ConstTensorView x;
  TensorView y;
};
void relu(const Relu& a, Stream stream);

// dx = dy where x > 0, else 0; x may be relu's y as well. dx may be dy or x.
struct ReluBackward {
  ConstTensorView x, dy;
  TensorView dx;
};
void relu_backward(const ReluBackward& a, Stream stream);

// Recorded forms.
void relu_into(ProgramBuilder& pb, Buffer x, Buffer y);
void relu_backward_into(ProgramBuilder& pb, Buffer x, Buffer dy, Buffer dx);

}  // namespace ballast::ops
