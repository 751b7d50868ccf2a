#pragma once

// What patchify and unpatchify share: token l = (f * H/2 + h) * W/2 + w holds the 2x2 patches
// x[c, f, 2h+i, 2w+j] of all channels; only the column of (c, i, j) differs.

#include "core/tensor.h"
#include "plan/program_builder.h"

namespace ballast::ops {

struct PatchRows {
  std::int64_t first_token = 0;
  std::int64_t channel_step = 0;  // column = c * channel_step + (2i + j) * place_step
  std::int64_t place_step = 0;
};

// Throws unless latent is f32 [C, F, H, W] with even H and W and unit stride along W, and rows is
// f32 or bf16 [R, 4C] of any row stride with R tokens from first_token on.
void check_patches(const char* op, const ConstTensorView& latent, const ConstTensorView& rows,
                   std::int64_t first_token);

// The rows and as many f32 elements of the latent: of the latent only these tokens are touched.
Cost row_traffic(const ProgramBuilder& pb, Buffer rows);

}  // namespace ballast::ops
