#include "ops/gelu.h"

#include "core/simd.h"
#include "ops/gelu_cuda.h"
#include "ops/kernels/cuda_call.h"
#include "ops/kernels/on_device.h"
#include "ops/kernels/row_checks.h"
#include "plan/bindings.h"

namespace ballast::ops {

namespace cpu {
BALLAST_PER_ISA(void gelu(const Gelu& a, ThreadPool& pool))
BALLAST_PER_ISA(void gelu_backward(const GeluBackward& a, ThreadPool& pool))
}  // namespace cpu

void gelu(const Gelu& a, Stream stream) {
  check(a.y.shape == a.x.shape, "gelu: y is {}, x is {}", a.y.shape, a.x.shape);
  const Gelu rows = {.x = as_rows("gelu: x", a.x), .y = as_rows("gelu: y", a.y)};
  const std::int64_t count = rows.x.shape[0], width = rows.x.shape[1];
  check_rows("gelu: x", rows.x, count, width);
  check_rows("gelu: y", rows.y, count, width);
  on_device(
      a.x.device, [&] { BALLAST_ISA_CALL(cpu, gelu, rows, *stream.pool); },
      [&] { cuda::gelu({.x = rows.x, .y = rows.y}, stream.native); });
}

void gelu_backward(const GeluBackward& a, Stream stream) {
  check(a.dy.shape == a.x.shape && a.dx.shape == a.x.shape,
        "gelu_backward: x is {}, dy is {}, dx is {}", a.x.shape, a.dy.shape, a.dx.shape);
  check(!a.y || (a.y.shape == a.x.shape && a.dx.data != a.x.data),
        "gelu_backward: x is {}, y is {}, and dx must not be x", a.x.shape, a.y.shape);
  const GeluBackward rows = {.x = as_rows("gelu_backward: x", a.x),
                             .dy = as_rows("gelu_backward: dy", a.dy),
                             .dx = as_rows("gelu_backward: dx", a.dx),
                             .y = a.y ? as_rows("gelu_backward: y", a.y) : TensorView()};
  const std::int64_t count = rows.x.shape[0], width = rows.x.shape[1];
  check_rows("gelu_backward: x", rows.x, count, width);
  check_rows("gelu_backward: dy", rows.dy, count, width);
  check_rows("gelu_backward: dx", rows.dx, count, width);
  if (rows.y) check_rows("gelu_backward: y", rows.y, count, width);
  on_device(
      a.x.device,
      [&] {
        BALLAST_ISA_CALL(cpu, gelu_backward, rows, *stream.pool);
        const Gelu forward = {.x = rows.x, .y = rows.y};
        if (rows.y) BALLAST_ISA_CALL(cpu, gelu, forward, *stream.pool);
      },
      [&] {
        cuda::gelu_backward({.x = rows.x, .dy = rows.dy, .dx = rows.dx, .y = rows.y},
                            stream.native);
      });
}

Buffer gelu(ProgramBuilder& pb, Buffer x, DType y_dtype) {
  const Buffer y = pb.temp("gelu", pb.shape(x), y_dtype);
  gelu_into(pb, x, y);
  return y;
}

void gelu_into(ProgramBuilder& pb, Buffer x, Buffer y) {
  pb.emit("gelu", {.reads = {x}, .writes = {y}},
          [=](const Bindings& b) { gelu({.x = b.in(x), .y = b.out(y)}, b.stream()); });
}

void gelu_backward_into(ProgramBuilder& pb, Buffer x, Buffer dy, Buffer dx, Buffer y) {
  pb.emit("gelu_backward", {.reads = {x, dy}, .writes = {dx, y}}, [=](const Bindings& b) {
    gelu_backward({.x = b.in(x), .dy = b.in(dy), .dx = b.out(dx), .y = b.out_if(y)}, b.stream());
  });
}

}  // namespace ballast::ops
