#pragma once

#include <array>

#include "core/tensor.h"
#include "plan/program_builder.h"

namespace ballast::ops {

// Rotates the pairs (2j, 2j+1) of every head:
//   y[2j] = x[2j] cos - x[2j+1] sin,  y[2j+1] = x[2j] sin + x[2j+1] cos;  inverse turns back
//   (backward).
// x and y are f32 or bf16, may differ, and may be the same memory (same dtype and strides).
struct Rope3d {
  ConstTensorView x;      // [L, H, D], any strides but 1 in D; D even
  ConstTensorView table;  // [L, D/2, 2] f32: cos, sin; rows contiguous
  TensorView y;           // [L, H, D]
  bool inverse = false;
};
void rope_3d(const Rope3d& a, Stream stream);

// The table of a token grid (F, H, W), tokens in that order: of the c = D/2 pairs the first
// c - 2 floor(c/3) turn with the frame, floor(c/3) with the row, floor(c/3) with the column; pair i
// of an axis with n pairs turns by position * 10000^(-i/n). Angles in f64, each entry rounded once
// to f32. An axis has at most 1024 positions, the limit of the published model.
struct Rope3dTable {
  std::array<std::int64_t, 3> grid;
  std::int64_t first_token = 0;  // of the grid; the table may hold a part of it
  TensorView table;              // [rows, D/2, 2] f32, rows contiguous
};
void rope_3d_table(const Rope3dTable& a, Stream stream);

// Recorded forms; rms_norm records the rotation with itself.
Buffer rope_3d_table(ProgramBuilder& pb, std::array<std::int64_t, 3> grid, std::int64_t head_width);
void rope_3d_table_into(ProgramBuilder& pb, std::array<std::int64_t, 3> grid, Buffer table,
                        std::int64_t first_token = 0);

}  // namespace ballast::ops
