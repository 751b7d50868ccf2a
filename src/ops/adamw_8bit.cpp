#include "ops/adamw_8bit.h"

#include <cmath>

#include "core/error.h"
#include "core/simd.h"
#include "ops/adamw_8bit_cuda.h"
#include "ops/cuda_call.h"
#include "ops/ordered_sum_call.h"
#include "ops/update_rounding_call.h"
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

inline void run_on_gpu(const AdamW8bit& a, Stream stream) {
  const AdamWOptions& o = a.options;
  const double k = static_cast<double>(a.step);
  const double k1 = 1 - std::pow(o.beta1, k), k2 = std::sqrt(1 - std::pow(o.beta2, k));
  cuda::adamw_8bit({.p = cuda::view(a.p),
                    .m = cuda::view(a.m),
                    .v = cuda::view(a.v),
                    .m_absmax = cuda::view(a.m_absmax),
                    .v_absmax = cuda::view(a.v_absmax),
                    .shift = cuda::view(a.shift),
                    .g = cuda::view(a.g),
                    .grad_scale = cuda::view(a.grad_scale),
                    .m_values = signed_map().value,
                    .m_thresholds = signed_map().threshold,
                    .v_values = unsigned_map().value,
                    .v_thresholds = unsigned_map().threshold,
                    .keep_m = static_cast<float>(o.beta1),
                    .add_m = static_cast<float>(1 - o.beta1),
                    .keep_v = static_cast<float>(o.beta2),
                    .add_v = static_cast<float>(1 - o.beta2),
                    .eps = static_cast<float>(k2 * o.eps),
                    .decays = o.weight_decay > 0,
                    .stabilize = a.stabilize,
                    .learning_rate = a.learning_rate,
                    .weight_decay = o.weight_decay,
                    .k1 = k1,
                    .k2 = k2,
                    .floor = o.eps * o.eps,
                    .scratch = a.stabilize ? cuda::sum_scratch(*stream.queue) : nullptr,
                    .rounding = cuda::rounding(a.rounding)},
                   stream.native);
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
      [&] { run_on_gpu(a, stream); });
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
      },
      prepare_ordered_sum);
}

}  // namespace ballast::ops
