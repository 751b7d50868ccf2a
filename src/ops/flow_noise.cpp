#include "ops/flow_noise.h"

#include "core/error.h"
#include "core/simd.h"
#include "ops/flow_noise_cuda.h"
#include "ops/kernels/cuda_call.h"
#include "ops/kernels/on_device.h"
#include "plan/bindings.h"

namespace ballast::ops {

namespace cpu {
BALLAST_PER_ISA(void flow_noise(const FlowNoise& a, ThreadPool& pool))
}

void flow_noise(const FlowNoise& a, Stream stream) {
  const auto check_tensor = [&](const char* name, const ConstTensorView& v) {
    check(v.dtype == DType::f32 && v.shape == a.x0.shape && v.contiguous(),
          "flow_noise: {} is {} {}, x0 is f32 {}, both contiguous", name, v.dtype, v.shape,
          a.x0.shape);
  };
  check_tensor("x0", a.x0);
  check_tensor("noise", a.noise);
  check_tensor("x_t", a.x_t);
  if (a.target) check_tensor("target", a.target);
  check((a.t.dtype == DType::f32 || a.t.dtype == DType::f64) && a.t.elements() == 1,
        "flow_noise: t is {} {}", a.t.dtype, a.t.shape);
  on_device(
      a.x_t.device, [&] { BALLAST_ISA_CALL(cpu, flow_noise, a, *stream.pool); },
      [&] {
        cuda::flow_noise({.x0 = a.x0, .noise = a.noise, .t = a.t, .x_t = a.x_t, .target = a.target},
                         stream.native);
      });
}

FlowNoiseOut flow_noise(ProgramBuilder& pb, Buffer x0, Buffer noise, Buffer t) {
  const Buffer x_t = pb.temp("x_t", pb.shape(x0), DType::f32);
  const Buffer target = pb.temp("target", pb.shape(x0), DType::f32);
  pb.emit("flow_noise", {.reads = {x0, noise, t}, .writes = {x_t, target}}, [=](const Bindings& b) {
    flow_noise({.x0 = b.in(x0),
                .noise = b.in(noise),
                .t = b.in(t),
                .x_t = b.out(x_t),
                .target = b.out(target)},
               b.stream());
  });
  return {x_t, target};
}

}  // namespace ballast::ops
