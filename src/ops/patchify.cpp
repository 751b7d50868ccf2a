#include "ops/patchify.h"

#include "core/simd.h"
#include "ops/kernels/cuda_call.h"
#include "ops/kernels/on_device.h"
#include "ops/kernels/patches.h"
#include "ops/patchify_cuda.h"
#include "plan/bindings.h"

namespace ballast::ops {

namespace cpu {
BALLAST_PER_ISA(void patchify(const Patchify& a, ThreadPool& pool))
BALLAST_PER_ISA(void patchify_backward(const PatchifyBackward& a, ThreadPool& pool))
}  // namespace cpu

void patchify(const Patchify& a, Stream stream) {
  check_patches("patchify", a.latent, a.tokens, a.first_token);
  on_device(
      a.tokens.device, [&] { BALLAST_ISA_CALL(cpu, patchify, a, *stream.pool); },
      [&] {
        cuda::patchify({.latent = a.latent, .tokens = a.tokens, .first_token = a.first_token},
                       stream.native);
      });
}

void patchify_backward(const PatchifyBackward& a, Stream stream) {
  check_patches("patchify_backward", a.dlatent, a.dtokens, a.first_token);
  on_device(
      a.dlatent.device, [&] { BALLAST_ISA_CALL(cpu, patchify_backward, a, *stream.pool); },
      [&] {
        cuda::patchify_backward(
            {.dtokens = a.dtokens, .dlatent = a.dlatent, .first_token = a.first_token},
            stream.native);
      });
}

void patchify(ProgramBuilder& pb, Buffer latent, Buffer tokens, std::int64_t first_token) {
  pb.emit("patchify", {.reads = {latent}, .writes = {tokens}, .cost = row_traffic(pb, tokens)},
          [=](const Bindings& b) {
            patchify({.latent = b.in(latent), .tokens = b.out(tokens), .first_token = first_token},
                     b.stream());
          });
}

void patchify_backward(ProgramBuilder& pb, Buffer dtokens, Buffer dlatent,
                       std::int64_t first_token) {
  pb.emit("patchify_backward",
          {.reads = {dtokens}, .writes = {dlatent}, .cost = row_traffic(pb, dtokens)},
          [=](const Bindings& b) {
            patchify_backward(
                {.dtokens = b.in(dtokens), .dlatent = b.out(dlatent), .first_token = first_token},
                b.stream());
          });
}

}  // namespace ballast::ops
