#include "ops/sgd.h"

#include "core/error.h"
#include "core/simd.h"
#include "ops/kernels/cuda_call.h"
#include "ops/kernels/on_device.h"
#include "ops/kernels/update_rounding_call.h"
#include "ops/sgd_cuda.h"
#include "plan/bindings.h"

namespace ballast::ops {

namespace cpu {
BALLAST_PER_ISA(void sgd(const Sgd& a, ThreadPool& pool))
}

void sgd(const Sgd& a, Stream stream) {
  check_parameter("sgd", a.p, a.rounding);
  check_beside_parameter("sgd", "g", a.g, a.p);
  check_grad_scale("sgd", a.grad_scale);
  if (a.b) check_beside_parameter("sgd", "b", a.b, a.p);
  check(a.b || a.options.momentum == 0 || a.p.elements() == 0,
        "sgd: momentum {} has no memory to live in", a.options.momentum);
  on_device(
      a.p.device, [&] { BALLAST_ISA_CALL(cpu, sgd, a, *stream.pool); },
      [&] {
        cuda::sgd({.p = a.p,
                   .b = a.b,
                   .g = a.g,
                   .grad_scale = a.grad_scale,
                   .momentum = static_cast<float>(a.options.momentum),
                   .decay = static_cast<float>(a.options.weight_decay),
                   .rate = static_cast<float>(a.learning_rate),
                   .rounding = cuda::rounding(a.rounding)},
                  stream.native);
      });
}

void sgd(ProgramBuilder& pb, Buffer p, Buffer b, Buffer g, Buffer grad_scale,
         const SgdOptions& options, const RecordedRounding& rounding) {
  const Buffer carry = rounding.carry;
  pb.emit("sgd", {.reads = {p, b, g, grad_scale, carry}, .writes = {p, b, carry}},
          [=](const Bindings& bound) {
            sgd({.p = bound.out(p),
                 .b = bound.out_if(b),
                 .g = bound.in(g),
                 .grad_scale = bound.in_if(grad_scale),
                 .options = options,
                 .learning_rate = bound.step().learning_rate,
                 .rounding = bind(bound, rounding)},
                bound.stream());
          });
}

}  // namespace ballast::ops
