#pragma once

#include "core/tensor.h"
#include "plan/program_builder.h"

namespace ballast::ops {

// y = e^(scale x - m) / sum(e^(scale x - m)), m = max(scale x), row by row. f32 or bf16, inner
// stride 1, sums in f32; y may be x (same dtype and strides).
struct Softmax {
  ConstTensorView x;  // [R, N]
  TensorView y;       // [R, N]
  float scale = 1;
};
void softmax(const Softmax& a, Stream stream);

// dx = scale y (dy - sum(dy y)), row by row. dx may be dy.
struct SoftmaxBackward {
  ConstTensorView y, dy;  // [R, N]
  TensorView dx;
  float scale = 1;
};
void softmax_backward(const SoftmaxBackward& a, Stream stream);

void softmax_into(ProgramBuilder& pb, Buffer x, Buffer y, float scale);
void softmax_backward_into(ProgramBuilder& pb, Buffer y, Buffer dy, Buffer dx, float scale);

}  // namespace ballast::ops
