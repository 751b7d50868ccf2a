#pragma once

#include "ops/kernels/cuda_view.h"

namespace ballast::ops::cuda {

// The operands of ops/rope_3d.h.
struct Rope3d {
  View x, table, y;
  bool inverse = false;
};
void rope_3d(const Rope3d& a, void* stream);

struct Rope3dTable {
  std::int64_t grid[3] = {};
  std::int64_t first_token = 0;
  View table;
};
void rope_3d_table(const Rope3dTable& a, void* stream);

}  // namespace ballast::ops::cuda
