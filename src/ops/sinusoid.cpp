#include "ops/sinusoid.h"

#include "core/error.h"
#include "core/simd.h"
#include "ops/kernels/cuda_call.h"
#include "ops/kernels/on_device.h"
#include "ops/sinusoid_cuda.h"
#include "plan/bindings.h"

namespace ballast::ops {

namespace cpu {
BALLAST_PER_ISA(void sinusoid(const Sinusoid& a, ThreadPool& pool))
}

void sinusoid(const Sinusoid& a, Stream stream) {
  check(a.t.dtype == DType::f64 && a.y.dtype == DType::f32, "sinusoid: {} to {}", a.t.dtype,
        a.y.dtype);
  check(a.t.shape.rank() == 1 && a.y.shape.rank() == 2 && a.y.shape[0] == a.t.shape[0] &&
            a.y.shape[1] % 2 == 0,
        "sinusoid: t is {}, y is {}", a.t.shape, a.y.shape);
  check(a.t.contiguous() && a.y.contiguous(), "sinusoid: t and y are contiguous");
  on_device(
      a.y.device, [&] { BALLAST_ISA_CALL(cpu, sinusoid, a, *stream.pool); },
      [&] { cuda::sinusoid({.t = a.t, .y = a.y}, stream.native); });
}

Buffer sinusoid(ProgramBuilder& pb, Buffer t, std::int64_t width) {
  const Buffer y = pb.temp("sinusoid", {pb.shape(t)[0], width}, DType::f32);
  pb.emit("sinusoid", {.reads = {t}, .writes = {y}},
          [=](const Bindings& b) { sinusoid({.t = b.in(t), .y = b.out(y)}, b.stream()); });
  return y;
}

}  // namespace ballast::ops
