#pragma once

#include "ops/kernels/cuda_view.h"

namespace ballast::ops::cuda {

// to[i, j] = factor * from[i, j - column], 0 where from has no such element; f32 or bf16, any row
// stride.
struct AppendItem {
  View from, to;
  std::int64_t column = 0;
  float factor = 1;
};
struct AppendItems {
  static constexpr int kMax = 24;
  AppendItem items[kMax];
  int count = 0;
};
void append_adapter(const AppendItems& a, void* stream);

}  // namespace ballast::ops::cuda
