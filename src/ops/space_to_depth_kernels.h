#pragma once

// Shared with vector and CUDA sources: C++17, plain data.

namespace ballast::ops {

struct BlockShape {
  int time = 1, space = 1;
  int lead = 0;  // of the first block, frames that the wide tensor does not have: < time
  bool columns_first = false;
};

}  // namespace ballast::ops
