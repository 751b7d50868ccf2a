#pragma once

#include "core/tensor.h"
#include "plan/program_builder.h"

namespace ballast::ops {

// out = x + y * gate[index], row by row; without a gate out = x + y. x, y, out are f32 or bf16 in
// any mix, the sum is formed in f32; the gate is f32, bf16 or f16. out may be x or y (same dtype
// and strides).
struct GatedResidual {
  ConstTensorView x;           // [R, C]
  ConstTensorView y;           // [R, C]
  ConstTensorView gate = {};   // [T, C], or empty
  ConstTensorView index = {};  // [R] i32 row of the gate table, or empty: row 0 for all
  TensorView out;              // [R, C]
};
void gated_residual(const GatedResidual& a, Stream stream);

// dx is dout itself. dy = dout * gate[index];  dgate[t] += sum of dout y over the rows with index
// t, quantum by quantum. dy may be dout or y (same dtype and strides).
struct GatedResidualBackward {
  ConstTensorView dout;       // [R, C]
  ConstTensorView gate = {};  // as in forward
  ConstTensorView index = {};
  TensorView dy;           // [R, C]
  ConstTensorView y = {};  // [R, C], read for dgate only
  TensorView dgate = {};   // [T, C] f32, or empty
};
void gated_residual_backward(const GatedResidualBackward& a, Stream stream);

// Recorded forms. A gate of rank 1 is a table of one row; absent operands are invalid buffers.
struct Gate {
  Buffer table = {}, index = {};
};
void gated_residual(ProgramBuilder& pb, Buffer x, Buffer y, const Gate& gate, Buffer out);
void gated_residual_backward(ProgramBuilder& pb, Buffer dout, const Gate& gate, Buffer dy, Buffer y,
                             Buffer dgate);  // y and dgate may be invalid

}  // namespace ballast::ops
