#pragma once

#include "core/tensor.h"
#include "plan/program_builder.h"

namespace ballast::ops {

// y += alpha * x, formed in f32.
// Both are f32 or bf16, of one shape, and either contiguous or [R, C] with any row stride.
struct AddInto {
  ConstTensorView x;
  TensorView y;
  float alpha = 1;
};
void add_into(const AddInto& a, Stream stream);

void add_into(ProgramBuilder& pb, Buffer x, Buffer y, float alpha = 1);

}  // namespace ballast::ops
