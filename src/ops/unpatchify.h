#pragma once

#include "core/tensor.h"
#include "plan/program_builder.h"

namespace ballast::ops {

// v[c, f, 2h+i, 2w+j] = y[l, (i*2 + j)*C + c]
// where row l is token first_token + l = (f * H/2 + h) * W/2 + w: the head's output put back in
// place, channel fastest (the opposite of patchify). Only what these R tokens hold is written. The
// backward is the inverse permutation.
struct Unpatchify {
  ConstTensorView y;  // [R, 4C] f32 or bf16, any row stride
  TensorView v;       // [C, F, H, W] f32, H and W even, unit stride along W
  std::int64_t first_token = 0;
};
void unpatchify(const Unpatchify& a, Stream stream);

struct UnpatchifyBackward {
  ConstTensorView dv;  // like v
  TensorView dy;       // like y; written, not added to
  std::int64_t first_token = 0;
};
void unpatchify_backward(const UnpatchifyBackward& a, Stream stream);

void unpatchify(ProgramBuilder& pb, Buffer y, Buffer v, std::int64_t first_token);
void unpatchify_backward(ProgramBuilder& pb, Buffer dv, Buffer dy, std::int64_t first_token);

}  // namespace ballast::ops
