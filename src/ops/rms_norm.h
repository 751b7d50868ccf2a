#pragma once

#include "core/tensor.h"
#include "plan/program_builder.h"

namespace ballast::ops {

// y = x * r * w,  r = 1 / sqrt(mean(x^2) + eps), row by row; with a table of turns, the pairs of
// every head of y are then rotated as ops/rope_3d.h does it, after y was rounded to its type; with
// `silu` it is then what ops/silu.h makes of it, likewise.
// x and y are f32 or bf16, w also f16; sums are kept in f32. y may be x (same dtype and strides).
struct RmsNorm {
  ConstTensorView x;  // [R, C]
  ConstTensorView w;  // [C]
  TensorView y;       // [R, C]
  TensorView r;       // [R] f32, kept for backward
  float eps = 1e-6f;
  ConstTensorView cos_sin = {};  // [R, D/2, 2] f32 cos and sin, rows contiguous; D divides C
  bool silu = false;
};
void rms_norm(const RmsNorm& a, Stream stream);

// g = dy * w;  dx = r (g - x r^2 mean(g x));  dw += sum over rows of dy x r.
// With turns dy is first rotated back and rounded to the type of dx.
// dw adds up quantum by quantum. dx may be dy (same dtype and strides).
struct RmsNormBackward {
  ConstTensorView x;   // [R, C]
  ConstTensorView r;   // [R] f32
  ConstTensorView w;   // [C]
  ConstTensorView dy;  // [R, C]
  TensorView dx;       // [R, C]
  TensorView dw = {};  // [C] f32; empty: w is frozen
  ConstTensorView cos_sin = {};
};
void rms_norm_backward(const RmsNormBackward& a, Stream stream);

// Recorded forms.
struct RmsNormOut {
  Buffer y, r;
};
RmsNormOut rms_norm(ProgramBuilder& pb, Buffer x, Buffer w, float eps);
void rms_norm_into(ProgramBuilder& pb, Buffer x, Buffer w, Buffer y, Buffer r, float eps,
                   Buffer cos_sin = {});
void rms_norm_silu_into(ProgramBuilder& pb, Buffer x, Buffer w, Buffer y, Buffer r, float eps);
void rms_norm_backward(ProgramBuilder& pb, Buffer x, Buffer r, Buffer w, Buffer dy, Buffer dx,
                       Buffer dw, Buffer cos_sin = {});  // dw may be invalid

}  // namespace ballast::ops
