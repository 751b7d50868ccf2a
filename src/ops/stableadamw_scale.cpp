#include "ops/stableadamw_scale.h"

#include "core/error.h"
#include "core/simd.h"
#include "ops/kernels/cuda_call.h"
#include "ops/kernels/on_device.h"
#include "ops/kernels/ordered_sum_call.h"
#include "ops/kernels/update_rounding.h"
#include "ops/stableadamw_scale_cuda.h"
#include "plan/bindings.h"

namespace ballast::ops {

namespace cpu {
BALLAST_PER_ISA(void stableadamw_scale(const StableAdamWScale& a, const AdamWCoefficients& c,
                                       ThreadPool& pool))
}

void stableadamw_scale(const StableAdamWScale& a, Stream stream) {
  check((a.v.dtype == DType::f32 || a.v.dtype == DType::bf16) && a.v.contiguous(),
        "stableadamw_scale: v is {} {}", a.v.dtype, a.v.shape);
  check_beside_parameter("stableadamw_scale", "g", a.g, a.v);
  check_grad_scale("stableadamw_scale", a.grad_scale);
  check(a.rates && a.rates.dtype == DType::f32 && a.rates.elements() == 2,
        "stableadamw_scale: rates are {} {}, expected f32 [2]", a.rates.dtype, a.rates.shape);
  check(a.options.debias == Debias::betas, "stableadamw_scale: v is taken as it is");
  check(a.step >= 1, "stableadamw_scale: steps count from 1, this is step {}", a.step);
  const AdamWCoefficients c = adamw_coefficients(a.options, a.step, a.learning_rate);
  on_device(
      a.rates.device, [&] { BALLAST_ISA_CALL(cpu, stableadamw_scale, a, c, *stream.pool); },
      [&] {
        cuda::stableadamw_scale({.v = a.v,
                                 .g = a.g,
                                 .grad_scale = a.grad_scale,
                                 .rates = a.rates,
                                 .coefficients = c,
                                 .learning_rate = a.learning_rate,
                                 .weight_decay = a.options.weight_decay,
                                 .scratch = sum_scratch(stream)},
                                stream.native);
      });
}

Buffer stableadamw_scale(ProgramBuilder& pb, const StableAdamWScaleBuffers& on,
                         const AdamWOptions& options) {
  const Buffer rates = pb.temp("rates", {2}, DType::f32, Role::optimizer);
  const Buffer workspace = sum_workspace(pb, rates);
  pb.emit("stableadamw_scale",
          {.reads = {on.v, on.g, on.grad_scale}, .writes = {rates}, .scratch = workspace},
          [=](const Bindings& b) {
            stableadamw_scale({.v = b.in(on.v),
                               .g = b.in(on.g),
                               .grad_scale = b.in_if(on.grad_scale),
                               .rates = b.out(rates),
                               .options = options,
                               .step = b.step().step,
                               .learning_rate = options.rate * b.step().learning_rate},
                              stream_with(b, workspace));
          });
  return rates;
}

}  // namespace ballast::ops
