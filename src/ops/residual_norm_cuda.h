#pragma once

#include "ops/kernels/cuda_view.h"

namespace ballast::ops::cuda {

// The operands of ops/residual_norm.h; gate, mul, add and the indices may be absent.
struct ResidualNorm {
  View x, y, gate, gate_index, out;
  View mul, add, index;
  bool one_plus = false;
  View z, stats;
  float eps = 0;
};
// Whether rows of these types, this width and alignment are held in the registers of a block.
bool in_one_kernel(const ResidualNorm& a);
void residual_norm(const ResidualNorm& a, void* stream);  // in_one_kernel(a)

}  // namespace ballast::ops::cuda
