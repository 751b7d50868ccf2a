#pragma once

#include "ops/conv3d/conv3d_kernels.h"

namespace ballast {
class GpuQueue;
}

namespace ballast::ops::cuda {

void conv_patches(const ConvPatches& a, void* stream);
void conv_reorder(const ConvReordering& a, void* stream);

// One frame of a 3x3x3 convolution by cuDNN, zeros around rows and columns: y [H, W, N] from x [3,
// H, W, C], w [N, 3, 3, 3, C] and bias [N], all bf16, dense and aligned to 16 bytes; C and N are
// multiples of 8. Sums are f32 and rounded once. Which kernel cuDNN takes depends on the sizes
// alone, those of a frame of chosen_height rows, and it gives the same bits every time.
struct ConvFrame {
  std::int64_t height = 0, chosen_height = 0, width = 0, channels = 0, outputs = 0;
  const void *x = nullptr, *w = nullptr, *bias = nullptr;
  void* y = nullptr;
  void* workspace = nullptr;  // kConvWorkspace bytes
};
// Asked for an H200, cuDNN offers configurations of 0.1 to 2.3 MiB for all layers of both VAEs.
inline constexpr std::int64_t kConvWorkspace = 8 << 20;
// A kernel that shares one sum among several blocks keeps partial sums, tiles of f32, in its
// workspace, and which sums it shares depends on how many there are: part of a frame would have
// other bits. One that needs less than a tile does not, and is taken where there is one. Asked for
// part of a frame (height below chosen_height) where cuDNN has the other kind alone, convolve()
// fails with ErrorCode::device.
inline constexpr std::int64_t kMaxWithoutPartialSums = 16 << 10;
// prepare: makes the plan and names the addresses, computes nothing.
void convolve(const ConvFrame& a, GpuQueue& queue, bool prepare);

}  // namespace ballast::ops::cuda
