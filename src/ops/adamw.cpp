#include "ops/adamw.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "core/error.h"
#include "core/simd.h"
#include "ops/adamw_cuda.h"
#include "ops/kernels/cuda_call.h"
#include "ops/kernels/on_device.h"
#include "ops/kernels/update_rounding_call.h"
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

namespace {

void check_adamw(const AdamW& a) {
  check_parameter("adamw", a.p, a.rounding);
  check_beside_parameter("adamw", "m", a.m, a.p);
  check_beside_parameter("adamw", "v", a.v, a.p);
  check(a.m.dtype == a.v.dtype, "adamw: m is {}, v is {}", a.m.dtype, a.v.dtype);
  check_beside_parameter("adamw", "g", a.g, a.p);
  check_grad_scale("adamw", a.grad_scale);
  check(!a.rates || (a.rates.dtype == DType::f32 && a.rates.elements() == 2 &&
                     a.options.debias == Debias::betas),
        "adamw: rates are {} {}, expected f32 [2] and debiased betas", a.rates.dtype,
        a.rates.shape);
  check(a.step >= 1, "adamw: steps count from 1, this is step {}", a.step);
}

cuda::AdamW adamw_on_gpu(const AdamW& a) {
  return {.p = a.p,
          .m = a.m,
          .v = a.v,
          .g = a.g,
          .grad_scale = a.grad_scale,
          .rates = a.rates,
          .coefficients = adamw_coefficients(a.options, a.step, a.learning_rate),
          .rounding = cuda::rounding(a.rounding)};
}

// What a launch has for all of its tensors.
bool can_batch(const AdamW& a, const AdamW& b) {
  return a.p.device == b.p.device && a.p.dtype == b.p.dtype && a.m.dtype == b.m.dtype &&
         a.g.dtype == b.g.dtype && a.grad_scale.data == b.grad_scale.data && a.step == b.step &&
         a.rounding.rounding == b.rounding.rounding;
}

}  // namespace

void adamw(const AdamW& a, Stream stream) { adamw({&a, 1}, stream); }

void adamw(std::span<const AdamW> tensors, Stream stream) {
  if (tensors.empty()) return;
  check(tensors.size() <= kAdamWTensors, "adamw: {} tensors in one call", tensors.size());
  for (const AdamW& a : tensors) {
    check_adamw(a);
    check(can_batch(a, tensors[0]), "adamw: {} {} and {} {} do not go together", a.p.dtype,
          a.p.shape, tensors[0].p.dtype, tensors[0].p.shape);
  }
  on_device(
      tensors[0].p.device,
      [&] {
        for (const AdamW& a : tensors) BALLAST_ISA_CALL(cpu, adamw, a, *stream.pool);
      },
      [&] {
        std::array<cuda::AdamW, kAdamWTensors> all;
        std::ranges::transform(tensors, all.begin(), adamw_on_gpu);
        cuda::adamw(all.data(), static_cast<int>(tensors.size()), stream.native);
      });
}

void adamw(ProgramBuilder& pb, std::vector<AdamWBuffers> tensors, Buffer grad_scale) {
  check(tensors.size() <= kAdamWTensors, "adamw: {} tensors in one call", tensors.size());
  Access access;
  for (const AdamWBuffers& t : tensors) {
    const Buffer scale = &t == &tensors.front() ? grad_scale : Buffer();
    access.reads.append({t.p, t.m, t.v, t.g, scale, t.rounding.carry, t.rates});
    access.writes.append({t.p, t.m, t.v, t.rounding.carry});
  }
  pb.emit("adamw", std::move(access),
          [tensors = std::move(tensors), grad_scale](const Bindings& b) {
            std::array<AdamW, kAdamWTensors> all;
            std::ranges::transform(tensors, all.begin(), [&](const AdamWBuffers& t) {
              return AdamW{.p = b.out(t.p),
                           .m = b.out(t.m),
                           .v = b.out(t.v),
                           .g = b.in(t.g),
                           .grad_scale = b.in_if(grad_scale),
                           .options = t.options,
                           .step = b.step().step,
                           .learning_rate = t.options.rate * b.step().learning_rate,
                           .rounding = bind(b, t.rounding),
                           .rates = b.in_if(t.rates)};
            });
            adamw({all.data(), tensors.size()}, b.stream());
          });
}

}  // namespace ballast::ops
