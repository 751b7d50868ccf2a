#pragma once

#include "ops/kernels/cuda_view.h"

namespace ballast::ops::cuda {

// The operands of ops/layer_norm.h; mul, add, index, dmul and dadd may be absent.
struct LayerNorm {
  View x, mul, add, index;
  bool one_plus = false;
  View y, stats;
  float eps = 0;
};
void layer_norm(const LayerNorm& a, void* stream);

struct LayerNormBackward {
  View x, stats, mul, index;
  bool one_plus = false;
  View dy, dx;
  bool accumulate = false;
  View dmul, dadd;
  float* scratch = nullptr;  // dmul, dadd: column_scratch_bytes()
};
void layer_norm_backward(const LayerNormBackward& a, void* stream);

}  // namespace ballast::ops::cuda
