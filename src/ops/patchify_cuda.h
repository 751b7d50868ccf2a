#pragma once

#include "ops/kernels/cuda_view.h"

namespace ballast::ops::cuda {

// The operands of ops/patchify.h.
struct Patchify {
  View latent, tokens;
  std::int64_t first_token = 0;
};
void patchify(const Patchify& a, void* stream);

struct PatchifyBackward {
  View dtokens, dlatent;
  std::int64_t first_token = 0;
};
void patchify_backward(const PatchifyBackward& a, void* stream);

}  // namespace ballast::ops::cuda
