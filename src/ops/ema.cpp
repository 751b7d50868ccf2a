#include "ops/ema.h"

#include "core/error.h"
#include "core/simd.h"
#include "ops/ema_cuda.h"
#include "ops/kernels/cuda_call.h"
#include "ops/kernels/on_device.h"
#include "ops/kernels/update_rounding.h"
#include "plan/bindings.h"

namespace ballast::ops {

namespace cpu {
BALLAST_PER_ISA(void ema(const Ema& a, ThreadPool& pool))
}

void ema(const Ema& a, Stream stream) {
  check_parameter("ema", a.p, ParameterRounding());
  check_beside_parameter("ema", "shadow", a.shadow, a.p);
  check(a.shadow.dtype == DType::f32, "ema: shadow is {}", a.shadow.dtype);
  check(a.decay >= 0 && a.decay <= 1, "ema: decay is {}", a.decay);
  on_device(
      a.p.device, [&] { BALLAST_ISA_CALL(cpu, ema, a, *stream.pool); },
      [&] {
        cuda::ema({.p = a.p, .shadow = a.shadow, .share = static_cast<float>(1 - a.decay)},
                  stream.native);
      });
}

void ema(ProgramBuilder& pb, Buffer p, Buffer shadow, double decay) {
  pb.emit("ema", {.reads = {p, shadow}, .writes = {shadow}}, [=](const Bindings& b) {
    ema({.p = b.in(p), .shadow = b.out(shadow), .decay = decay}, b.stream());
  });
}

}  // namespace ballast::ops
