#include "ops/noise.h"

#include "core/error.h"
#include "core/simd.h"

namespace ballast::ops {

namespace cpu {
BALLAST_PER_ISA(void noise(const Noise& a, ThreadPool& pool))
}

void noise(const Noise& a, Stream stream) {
  check(a.to.dtype == DType::f32 && a.to.contiguous(), "noise: to is {} {}, not contiguous f32",
        a.to.dtype, a.to.shape);
  on_device(
      a.to.device, [&] { BALLAST_ISA_CALL(cpu, noise, a, *stream.pool); },
      [&] { fail(ErrorCode::device, "noise has no CUDA kernel in this build"); });
}

void noise(ProgramBuilder& pb, Buffer to, const RandomSite& site) {
  pb.emit("noise", {.reads = {}, .writes = {to}}, [=](const Bindings& b) {
    noise({.to = b.out(to), .source = site.at(b.step())}, b.stream());
  });
}

}  // namespace ballast::ops
