#pragma once

#include "ops/kernels/cuda_view.h"

namespace ballast::ops::cuda {

// to[i, j] = factor * from[i, j - column], 0 where from has no such element; f32 or bf16, any row
// stride.
struct InlayItem {
  View from, to;
  std::int64_t column = 0;
  float factor = 1;
};
struct Inlays {
  static constexpr int kMost = 24;
  InlayItem items[kMost];
  int count = 0;
};
void inlay(const Inlays& a, void* stream);

}  // namespace ballast::ops::cuda
