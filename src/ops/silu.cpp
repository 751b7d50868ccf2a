#include "ops/silu.h"

#include "core/simd.h"
#include "ops/kernels/cuda_call.h"
#include "ops/kernels/on_device.h"
#include "ops/kernels/row_checks.h"
#include "ops/silu_cuda.h"
#include "plan/bindings.h"

namespace ballast::ops {

namespace cpu {
BALLAST_PER_ISA(void silu(const Silu& a, ThreadPool& pool))
BALLAST_PER_ISA(void silu_backward(const SiluBackward& a, ThreadPool& pool))
}  // namespace cpu

void silu(const Silu& a, Stream stream) {
  check(a.y.shape == a.x.shape, "silu: y is {}, x is {}", a.y.shape, a.x.shape);
  const Silu rows = {.x = as_rows("silu: x", a.x), .y = as_rows("silu: y", a.y)};
  const std::int64_t count = rows.x.shape[0], width = rows.x.shape[1];
  check_rows("silu: x", rows.x, count, width);
  check_rows("silu: y", rows.y, count, width);
  on_device(
      a.x.device, [&] { BALLAST_ISA_CALL(cpu, silu, rows, *stream.pool); },
      [&] { cuda::silu({.x = rows.x, .y = rows.y}, stream.native); });
}

void silu_backward(const SiluBackward& a, Stream stream) {
  check(a.dy.shape == a.x.shape && a.dx.shape == a.x.shape,
        "silu_backward: x is {}, dy is {}, dx is {}", a.x.shape, a.dy.shape, a.dx.shape);
  const SiluBackward rows = {.x = as_rows("silu_backward: x", a.x),
                             .dy = as_rows("silu_backward: dy", a.dy),
                             .dx = as_rows("silu_backward: dx", a.dx)};
  const std::int64_t count = rows.x.shape[0], width = rows.x.shape[1];
  check_rows("silu_backward: x", rows.x, count, width);
  check_rows("silu_backward: dy", rows.dy, count, width);
  check_rows("silu_backward: dx", rows.dx, count, width);
  on_device(
      a.x.device, [&] { BALLAST_ISA_CALL(cpu, silu_backward, rows, *stream.pool); },
      [&] { cuda::silu_backward({.x = rows.x, .dy = rows.dy, .dx = rows.dx}, stream.native); });
}

Buffer silu(ProgramBuilder& pb, Buffer x, DType y_dtype) {
  const Buffer y = pb.temp("silu", pb.shape(x), y_dtype);
  silu_into(pb, x, y);
  return y;
}

void silu_into(ProgramBuilder& pb, Buffer x, Buffer y) {
  pb.emit("silu", {.reads = {x}, .writes = {y}},
          [=](const Bindings& b) { silu({.x = b.in(x), .y = b.out(y)}, b.stream()); });
}

void silu_backward_into(ProgramBuilder& pb, Buffer x, Buffer dy, Buffer dx) {
  pb.emit("silu_backward", {.reads = {x, dy}, .writes = {dx}}, [=](const Bindings& b) {
    silu_backward({.x = b.in(x), .dy = b.in(dy), .dx = b.out(dx)}, b.stream());
  });
}

}  // namespace ballast::ops
