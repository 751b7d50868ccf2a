#include "ops/noise.h"

#include "core/error.h"
#include "core/simd.h"
#include "ops/kernels/cuda_call.h"
#include "ops/kernels/on_device.h"
#include "ops/noise_cuda.h"

namespace ballast::ops {

namespace cpu {
BALLAST_PER_ISA(void noise(const Noise& a, ThreadPool& pool))
}

void noise(const Noise& a, Stream stream) {
  check(a.to.dtype == DType::f32 && a.to.contiguous(), "noise: to is {} {}, not contiguous f32",
        a.to.dtype, a.to.shape);
  on_device(
      a.to.device, [&] { BALLAST_ISA_CALL(cpu, noise, a, *stream.pool); },
      [&] {
        cuda::noise({.to = a.to, .source = cuda::random_key(a.source), .first = a.first},
                    stream.native);
      });
}

void noise(ProgramBuilder& pb, Buffer to, const RandomSite& site) {
  pb.emit("noise", {.reads = {}, .writes = {to}}, [=](const Bindings& b) {
    noise({.to = b.out(to), .source = site.at(b.step())}, b.stream());
  });
}

}  // namespace ballast::ops
