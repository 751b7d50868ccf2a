#pragma once

#include "ops/kernels/cuda_view.h"
#include "ops/space_to_depth_kernels.h"

namespace ballast::ops::cuda {

struct BlockMove {
  View wide, folded;
  BlockShape block;
  float scale = 1;
  bool accumulate = false;
};
void space_to_depth(const BlockMove& a, void* stream);
void depth_to_space(const BlockMove& a, void* stream);

}  // namespace ballast::ops::cuda
