#include "ops/adamw.h"

#include "core/error.h"
#include "core/simd.h"
#include "plan/bindings.h"

namespace ballast::ops {

namespace cpu {
BALLAST_PER_ISA(void adamw(const AdamW& a, ThreadPool& pool))
}

void adamw(const AdamW& a, Stream stream) {
  const auto check_state = [&](const char* name, const ConstTensorView& t) {
    check(t.dtype == DType::f32 && t.shape == a.p.shape && t.contiguous(),
          "adamw: {} is {} {}, p is f32 {}, both contiguous", name, t.dtype, t.shape, a.p.shape);
  };
  check_state("p", a.p);
  check_state("m", a.m);
  check_state("v", a.v);
  check((a.g.dtype == DType::f32 || a.g.dtype == DType::bf16) && a.g.shape == a.p.shape &&
            a.g.contiguous(),
        "adamw: g is {} {}, p is {}", a.g.dtype, a.g.shape, a.p.shape);
  check(!a.grad_scale || (a.grad_scale.dtype == DType::f32 && a.grad_scale.elements() == 1),
        "adamw: grad_scale is {} {}", a.grad_scale.dtype, a.grad_scale.shape);
  check(a.step >= 1, "adamw: steps count from 1, this is step {}", a.step);
  on_device(
      a.p.device, [&] { BALLAST_ISA_CALL(cpu, adamw, a, *stream.pool); },
      [&] { fail(ErrorCode::device, "adamw has no CUDA kernel in this build"); });
}

void adamw(ProgramBuilder& pb, Buffer p, Buffer m, Buffer v, Buffer g, Buffer grad_scale,
           const AdamWOptions& options) {
  pb.emit("adamw", {.reads = {p, m, v, g, grad_scale}, .writes = {p, m, v}},
          [=](const Bindings& b) {
            adamw({.p = b.out(p),
                   .m = b.out(m),
                   .v = b.out(v),
                   .g = b.in(g),
                   .grad_scale = b.in_if(grad_scale),
                   .options = options,
                   .step = b.step().step,
                   .learning_rate = b.step().learning_rate},
                  b.stream());
          });
}

}  // namespace ballast::ops
