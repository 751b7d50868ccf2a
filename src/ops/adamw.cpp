#include "ops/adamw.h"

#include "core/error.h"
#include "core/simd.h"
#include "plan/bindings.h"

namespace ballast::ops {

namespace cpu {
BALLAST_PER_ISA(void adamw(const AdamW& a, ThreadPool& pool))
}

void adamw(const AdamW& a, Stream stream) {
  check_parameter("adamw", a.p, a.rounding);
  check_beside_parameter("adamw", "m", a.m, a.p);
  check_beside_parameter("adamw", "v", a.v, a.p);
  check(a.m.dtype == a.v.dtype, "adamw: m is {}, v is {}", a.m.dtype, a.v.dtype);
  check_beside_parameter("adamw", "g", a.g, a.p);
  check_grad_scale("adamw", a.grad_scale);
  check(a.step >= 1, "adamw: steps count from 1, this is step {}", a.step);
  on_device(
      a.p.device, [&] { BALLAST_ISA_CALL(cpu, adamw, a, *stream.pool); },
      [&] { fail(ErrorCode::device, "adamw has no CUDA kernel in this build"); });
}

void adamw(ProgramBuilder& pb, Buffer p, Buffer m, Buffer v, Buffer g, Buffer grad_scale,
           const AdamWOptions& options, const RecordedRounding& rounding) {
  const Buffer carry = rounding.carry;
  pb.emit("adamw", {.reads = {p, m, v, g, grad_scale, carry}, .writes = {p, m, v, carry}},
          [=](const Bindings& b) {
            adamw({.p = b.out(p),
                   .m = b.out(m),
                   .v = b.out(v),
                   .g = b.in(g),
                   .grad_scale = b.in_if(grad_scale),
                   .options = options,
                   .step = b.step().step,
                   .learning_rate = options.rate * b.step().learning_rate,
                   .rounding = bind(b, rounding)},
                  b.stream());
          });
}

}  // namespace ballast::ops
