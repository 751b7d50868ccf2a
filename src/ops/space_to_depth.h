#pragma once

#include "core/tensor.h"
#include "ops/space_to_depth_kernels.h"
#include "plan/program_builder.h"

namespace ballast::ops {

// Between a wide tensor of channels-last frames, [T, H, W, C], and a folded one, [T', H/s, W/s, N],
// in which a block of t frames, s rows and s columns stands at one position. With a, p, q the
// frame, row and column inside the block, wide channel c has the flat index
//   ((c t + a) s + p) s + q,  or with columns_first ((c t + a) s + q) s + p,
// and folded channel n stands for the G = C t s^2 / N flat indices n G ... n G + G - 1.
// Frame 0 of the wide tensor is frame `lead` of the first block; what would come before it is zero
// or dropped.
//   fold:    folded (+)= scale * (sum of the wide elements of its group, in order)
//   unfold:  wide   (+)= scale * (the folded element of its group)
// Each is the gradient of the other. f32 or bf16, dense; sums are f32.
struct SpaceToDepth {
  ConstTensorView wide;
  TensorView folded;
  BlockShape block = {};
  float scale = 1;
  bool accumulate = false;
};
void space_to_depth(const SpaceToDepth& a, Stream stream);

struct DepthToSpace {
  ConstTensorView folded;
  TensorView wide;
  BlockShape block = {};
  float scale = 1;
  bool accumulate = false;
};
void depth_to_space(const DepthToSpace& a, Stream stream);

struct SpaceToDepthOptions {
  BlockShape block = {};
  float scale = 1;
  bool accumulate = false;
};
void space_to_depth_into(ProgramBuilder& pb, Buffer wide, Buffer folded,
                         const SpaceToDepthOptions& o);
void depth_to_space_into(ProgramBuilder& pb, Buffer folded, Buffer wide,
                         const SpaceToDepthOptions& o);

}  // namespace ballast::ops
