#pragma once

#include "ops/conv3d_kernels.h"

namespace ballast::ops::cuda {

void conv_patches(const ConvPatches& a, void* stream);
void conv_reorder(const ConvReordering& a, void* stream);

}  // namespace ballast::ops::cuda
