#pragma once

#include "ops/kernels/cuda_view.h"

namespace ballast::ops::cuda {

// The operands of ops/unpatchify.h.
struct Unpatchify {
  View y, v;
  std::int64_t first_token = 0;
};
void unpatchify(const Unpatchify& a, void* stream);

struct UnpatchifyBackward {
  View dv, dy;
  std::int64_t first_token = 0;
};
void unpatchify_backward(const UnpatchifyBackward& a, void* stream);

}  // namespace ballast::ops::cuda
