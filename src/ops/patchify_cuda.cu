#include "ops/kernels/patches_kernel.cuh"
#include "ops/patchify_cuda.h"

namespace ballast::ops::cuda {

void patchify(const Patchify& a, void* stream) {
  move_patches<true>(a.latent, a.tokens, a.first_token, false, stream_of(stream));
  check_launch("patchify");
}

void patchify_backward(const PatchifyBackward& a, void* stream) {
  move_patches<false>(a.dlatent, a.dtokens, a.first_token, false, stream_of(stream));
  check_launch("patchify_backward");
}

}  // namespace ballast::ops::cuda
