#pragma once

#include <cstdint>

#include "core/tensor.h"
#include "ops/fold_blocks_kernels.h"
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
struct FoldBlocks {
  ConstTensorView wide;
  TensorView folded;
  BlockShape block = {};
  float scale = 1;
  bool accumulate = false;
};
void fold_blocks(const FoldBlocks& a, Stream stream);

struct UnfoldBlocks {
  ConstTensorView folded;
  TensorView wide;
  BlockShape block = {};
  float scale = 1;
  bool accumulate = false;
};
void unfold_blocks(const UnfoldBlocks& a, Stream stream);

struct FoldOptions {
  BlockShape block = {};
  float scale = 1;
  bool accumulate = false;
};
void fold_blocks_into(ProgramBuilder& pb, Buffer wide, Buffer folded, const FoldOptions& o);
void unfold_blocks_into(ProgramBuilder& pb, Buffer folded, Buffer wide, const FoldOptions& o);

}  // namespace ballast::ops
