#pragma once

#include "core/tensor.h"
#include "plan/program_builder.h"

namespace ballast::ops {

// tokens[l, c*4 + i*2 + j] = latent[c, f, 2h+i, 2w+j]
// where row l is token first_token + l = (f * H/2 + h) * W/2 + w: the patch embedding's input,
// channel slowest. The backward is the inverse permutation and writes only what these R tokens
// hold.
struct Patchify {
  ConstTensorView latent;  // [C, F, H, W] f32, H and W even, unit stride along W
  TensorView tokens;       // [R, 4C] f32 or bf16, any row stride: may be columns of a wider matrix
  std::int64_t first_token = 0;
};
void patchify(const Patchify& a, Stream stream);

struct PatchifyBackward {
  ConstTensorView dtokens;  // like tokens
  TensorView dlatent;       // like latent; written, not added to
  std::int64_t first_token = 0;
};
void patchify_backward(const PatchifyBackward& a, Stream stream);

void patchify(ProgramBuilder& pb, Buffer latent, Buffer tokens, std::int64_t first_token);
void patchify_backward(ProgramBuilder& pb, Buffer dtokens, Buffer dlatent,
                       std::int64_t first_token);

}  // namespace ballast::ops
