#pragma once

#include "core/tensor.h"
#include "plan/program_builder.h"

namespace ballast::ops {

// xhat = (x - mean) * rstd, rstd = 1 / sqrt(var + eps), var biased, row by row;
// y = xhat * f + add with f = 1 + mul (one_plus) or mul. Row r of x uses row index[r] of the
// tables.
//   plain       no tables
//   affine      tables of one row, one_plus = false: norm3's gain and bias
//   modulated   one row per distinct timestep, one_plus = true: scale and shift
// An absent mul means f = 1, an absent add 0, an absent index row 0 for all. x and y are f32 or
// bf16, not necessarily the same; tables f32, bf16 or f16. The mean is taken first and the variance
// from the differences to it, both in f32. y may be x (same dtype and strides).
struct LayerNorm {
  ConstTensorView x;           // [R, C]
  ConstTensorView mul = {};    // [T, C], or empty
  ConstTensorView add = {};    // [T, C], or empty
  ConstTensorView index = {};  // [R] i32, or empty
  bool one_plus = false;
  TensorView y;      // [R, C]
  TensorView stats;  // [R, 2] f32: mean, rstd; kept for backward
  float eps = 1e-6f;
};
void layer_norm(const LayerNorm& a, Stream stream);

// g = dy * f;  dx = rstd (g - mean(g) - xhat mean(g xhat)), or dx += that (accumulate);
// dmul[t] += sum of dy xhat, dadd[t] += sum of dy, over the rows with index t, quantum by quantum.
// dx may be dy (same dtype and strides) unless it accumulates.
struct LayerNormBackward {
  ConstTensorView x;         // [R, C]
  ConstTensorView stats;     // [R, 2] f32
  ConstTensorView mul = {};  // as in forward
  ConstTensorView index = {};
  bool one_plus = false;
  ConstTensorView dy;  // [R, C]
  TensorView dx;       // [R, C]
  bool accumulate = false;
  TensorView dmul = {};  // [T, C] f32, or empty
  TensorView dadd = {};  // [T, C] f32, or empty
};
void layer_norm_backward(const LayerNormBackward& a, Stream stream);

// Recorded forms. Tables of rank 1 are tables of one row; absent operands are invalid buffers.
struct NormTables {
  Buffer mul = {}, add = {}, index = {};
  bool one_plus = false;
};
struct LayerNormOut {
  Buffer y, stats;
};
LayerNormOut layer_norm(ProgramBuilder& pb, Buffer x, const NormTables& tables, float eps,
                        DType y_dtype);
void layer_norm_into(ProgramBuilder& pb, Buffer x, const NormTables& tables, Buffer y, Buffer stats,
                     float eps);

struct NormTableGrads {
  Buffer dmul = {}, dadd = {};
};
void layer_norm_backward(ProgramBuilder& pb, Buffer x, Buffer stats, const NormTables& tables,
                         Buffer dy, Buffer dx, bool accumulate, const NormTableGrads& grads);

}  // namespace ballast::ops
