#include "ops/unpatchify.h"

#include "core/simd.h"
#include "ops/kernels/cuda_call.h"
#include "ops/kernels/on_device.h"
#include "ops/kernels/patches.h"
#include "ops/unpatchify_cuda.h"
#include "plan/bindings.h"

namespace ballast::ops {

namespace cpu {
BALLAST_PER_ISA(void unpatchify(const Unpatchify& a, ThreadPool& pool))
BALLAST_PER_ISA(void unpatchify_backward(const UnpatchifyBackward& a, ThreadPool& pool))
}  // namespace cpu

void unpatchify(const Unpatchify& a, Stream stream) {
  check_patches("unpatchify", a.v, a.y, a.first_token);
  on_device(
      a.v.device, [&] { BALLAST_ISA_CALL(cpu, unpatchify, a, *stream.pool); },
      [&] { cuda::unpatchify({.y = a.y, .v = a.v, .first_token = a.first_token}, stream.native); });
}

void unpatchify_backward(const UnpatchifyBackward& a, Stream stream) {
  check_patches("unpatchify_backward", a.dv, a.dy, a.first_token);
  on_device(
      a.dy.device, [&] { BALLAST_ISA_CALL(cpu, unpatchify_backward, a, *stream.pool); },
      [&] {
        cuda::unpatchify_backward({.dv = a.dv, .dy = a.dy, .first_token = a.first_token},
                                  stream.native);
      });
}

void unpatchify(ProgramBuilder& pb, Buffer y, Buffer v, std::int64_t first_token) {
  pb.emit("unpatchify", {.reads = {y}, .writes = {v}, .cost = row_traffic(pb, y)},
          [=](const Bindings& b) {
            unpatchify({.y = b.in(y), .v = b.out(v), .first_token = first_token}, b.stream());
          });
}

void unpatchify_backward(ProgramBuilder& pb, Buffer dv, Buffer dy, std::int64_t first_token) {
  pb.emit("unpatchify_backward", {.reads = {dv}, .writes = {dy}, .cost = row_traffic(pb, dy)},
          [=](const Bindings& b) {
            unpatchify_backward({.dv = b.in(dv), .dy = b.out(dy), .first_token = first_token},
                                b.stream());
          });
}

}  // namespace ballast::ops
