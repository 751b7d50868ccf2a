#include "ops/kernels/patches_kernel.cuh"
#include "ops/unpatchify_cuda.h"

namespace ballast::ops::cuda {

void unpatchify(const Unpatchify& a, void* stream) {
  move_patches<false>(a.v, a.y, a.first_token, true, stream_of(stream));
  check_launch("unpatchify");
}

void unpatchify_backward(const UnpatchifyBackward& a, void* stream) {
  move_patches<true>(a.dv, a.dy, a.first_token, true, stream_of(stream));
  check_launch("unpatchify_backward");
}

}  // namespace ballast::ops::cuda
