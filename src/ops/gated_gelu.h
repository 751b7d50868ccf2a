#pragma once

#include "core/tensor.h"
#include "plan/program_builder.h"

namespace ballast::ops {

// z = gelu(a) * b, element by element; gelu as ops/gelu.h defines it, the product in f32.
// All f32 or bf16, [R, C], inner stride 1, any row stride. z may be a or b (same dtype and
// strides).
struct GatedGelu {
  ConstTensorView a, b;
  TensorView z;
};
void gated_gelu(const GatedGelu& x, Stream stream);

// da = dz * b * gelu'(a),  db = dz * gelu(a); gelu is computed again. da may be a or dz, db may be
// b or dz, as long as no result is the other's operand at another place.
struct GatedGeluBackward {
  ConstTensorView a, b, dz;
  TensorView da, db;
};
void gated_gelu_backward(const GatedGeluBackward& x, Stream stream);

// Recorded forms.
void gated_gelu_into(ProgramBuilder& pb, Buffer a, Buffer b, Buffer z);
void gated_gelu_backward_into(ProgramBuilder& pb, Buffer a, Buffer b, Buffer dz, Buffer da,
                              Buffer db);

}  // namespace ballast::ops
