#include "ops/adamw_8bit.h"

#include "core/error.h"
#include "core/simd.h"
#include "plan/bindings.h"

namespace ballast::ops {

namespace cpu {
BALLAST_PER_ISA(void adamw_8bit(const AdamW8bit& a, const DynamicMap& m_map,
                                const DynamicMap& v_map, ThreadPool& pool))
}

namespace {

void check_moment(const char* name, const ConstTensorView& t, const ConstTensorView& absmax,
                  const ConstTensorView& p) {
  const bool codes = t.dtype == DType::u8;
  check((codes || t.dtype == DType::f32) && t.elements() == p.elements() && t.contiguous(),
        "adamw_8bit: {} is {} {}, p is {} {}", name, t.dtype, t.shape, p.dtype, p.shape);
  if (!codes || p.elements() == 0) return;
  const std::int64_t blocks = (p.elements() + kStateBlock - 1) / kStateBlock;
  check(absmax && absmax.dtype == DType::f32 && absmax.elements() == blocks && absmax.contiguous(),
        "adamw_8bit: absmax of {} is {} {}, expected f32 [{}]", name, absmax.dtype, absmax.shape,
        blocks);
}

}  // namespace

void adamw_8bit(const AdamW8bit& a, Stream stream) {
  check_parameter("adamw_8bit", a.p, a.rounding);
  check_moment("m", a.m, a.m_absmax, a.p);
  check_moment("v", a.v, a.v_absmax, a.p);
  check(a.m.dtype == a.v.dtype, "adamw_8bit: m is {}, v is {}", a.m.dtype, a.v.dtype);
  if (a.shift) {
    check(
        a.shift.dtype == a.p.dtype && a.shift.elements() == a.p.elements() && a.shift.contiguous(),
        "adamw_8bit: shift is {} {}, p is {} {}", a.shift.dtype, a.shift.shape, a.p.dtype,
        a.p.shape);
  }
  check_beside_parameter("adamw_8bit", "g", a.g, a.p);
  check_grad_scale("adamw_8bit", a.grad_scale);
  check(a.step >= 1, "adamw_8bit: steps count from 1, this is step {}", a.step);
  on_device(
      a.p.device,
      [&] { BALLAST_ISA_CALL(cpu, adamw_8bit, a, signed_map(), unsigned_map(), *stream.pool); },
      [&] { fail(ErrorCode::device, "adamw_8bit has no CUDA kernel in this build"); });
}

void adamw_8bit(ProgramBuilder& pb, const AdamW8bitBuffers& on, const AdamWOptions& options,
                bool stabilize, const RecordedRounding& rounding) {
  const Buffer carry = rounding.carry;
  pb.emit(
      "adamw_8bit",
      {.reads = {on.p, on.m, on.m_absmax, on.v, on.v_absmax, on.shift, on.g, on.grad_scale, carry},
       .writes = {on.p, on.m, on.m_absmax, on.v, on.v_absmax, on.shift, carry}},
      [=](const Bindings& b) {
        adamw_8bit({.p = b.out(on.p),
                    .m = b.out(on.m),
                    .v = b.out(on.v),
                    .m_absmax = b.out_if(on.m_absmax),
                    .v_absmax = b.out_if(on.v_absmax),
                    .shift = b.out_if(on.shift),
                    .g = b.in(on.g),
                    .grad_scale = b.in_if(on.grad_scale),
                    .options = options,
                    .stabilize = stabilize,
                    .step = b.step().step,
                    .learning_rate = options.rate * b.step().learning_rate,
                    .rounding = bind(b, rounding)},
                   b.stream());
      });
}

}  // namespace ballast::ops
