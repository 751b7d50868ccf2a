#pragma once

#include "ops/fold_blocks_kernels.h"
#include "ops/kernels/cuda_view.h"

namespace ballast::ops::cuda {

struct BlockMove {
  View wide, folded;
  BlockShape block;
  float scale = 1;
  bool accumulate = false;
};
void fold_blocks(const BlockMove& a, void* stream);
void unfold_blocks(const BlockMove& a, void* stream);

}  // namespace ballast::ops::cuda
