#include "ops/adamw.h"

#include <cmath>

#include "core/error.h"
#include "core/simd.h"
#include "ops/adamw_cuda.h"
#include "ops/cuda_call.h"
#include "ops/update_rounding_call.h"
#include "plan/bindings.h"

namespace ballast::ops {

namespace cpu {
BALLAST_PER_ISA(void adamw(const AdamW& a, ThreadPool& pool))
}

AdamWCoefficients adamw_coefficients(const AdamWOptions& o, std::int64_t step,
                                     double learning_rate) {
  const double k = static_cast<double>(step);
  const double power1 = std::pow(o.beta1, k), power2 = std::pow(o.beta2, k);
  double beta1 = o.beta1, beta2 = o.beta2, rate = learning_rate, unbias_v = 1;
  if (o.debias == Debias::betas) {
    beta1 = (power1 - beta1) / (power1 - 1);
    beta2 = (power2 - beta2) / (power2 - 1);
  } else {
    rate /= 1 - power1;
    unbias_v = 1 / std::sqrt(1 - power2);
  }
  return {.decay = static_cast<float>(1 - learning_rate * o.weight_decay),
          .keep_m = static_cast<float>(beta1),
          .add_m = static_cast<float>(1 - beta1),
          .keep_v = static_cast<float>(beta2),
          .add_v = static_cast<float>(1 - beta2),
          .rate = static_cast<float>(rate),
          .unbias_v = static_cast<float>(unbias_v),
          .eps = static_cast<float>(o.eps)};
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
      [&] {
        cuda::adamw({.p = cuda::view(a.p),
                     .m = cuda::view(a.m),
                     .v = cuda::view(a.v),
                     .g = cuda::view(a.g),
                     .grad_scale = cuda::view(a.grad_scale),
                     .coefficients = adamw_coefficients(a.options, a.step, a.learning_rate),
                     .rounding = cuda::rounding(a.rounding)},
                    stream.native);
      });
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
