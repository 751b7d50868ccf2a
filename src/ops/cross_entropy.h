#pragma once

#include "core/tensor.h"
#include "plan/program_builder.h"

namespace ballast::ops {

// Row by row, where label >= 0:
//   loss = log(sum_c e^x_c) - x_label,   dx_c = weight * (e^x_c / sum e^x - [c = label]);
// where it is negative both are 0. Sums in f32. Rows do not depend on each other, so a chunk of
// rows is as good as all of them.
struct CrossEntropy {
  ConstTensorView x;       // [R, V] f32 or bf16, inner stride 1
  ConstTensorView labels;  // [R] i32 below V, contiguous (checked on the CPU)
  ConstTensorView weight;  // [1] f32
  TensorView losses;       // [R] f32, contiguous
  TensorView dx = {};      // [R, V] f32 or bf16; may be x; empty: not wanted
};
void cross_entropy(const CrossEntropy& a, Stream stream);

// Recorded form; dx may be invalid.
struct CrossEntropyBuffers {
  Buffer x, labels, weight, losses, dx = {};
};
void cross_entropy(ProgramBuilder& pb, const CrossEntropyBuffers& buffers);

}  // namespace ballast::ops
