#include "ops/softmax.h"

#include "core/simd.h"
#include "ops/kernels/cuda_call.h"
#include "ops/kernels/on_device.h"
#include "ops/kernels/row_checks.h"
#include "ops/softmax_cuda.h"
#include "plan/bindings.h"

namespace ballast::ops {

namespace cpu {
BALLAST_PER_ISA(void softmax(const Softmax& a, ThreadPool& pool))
BALLAST_PER_ISA(void softmax_backward(const SoftmaxBackward& a, ThreadPool& pool))
}  // namespace cpu

void softmax(const Softmax& a, Stream stream) {
  check_rank_2("softmax: x", a.x);
  const std::int64_t rows = a.x.shape[0], width = a.x.shape[1];
  check_rows("softmax: x", a.x, rows, width);
  check_rows("softmax: y", a.y, rows, width);
  on_device(
      a.x.device, [&] { BALLAST_ISA_CALL(cpu, softmax, a, *stream.pool); },
      [&] { cuda::softmax({.x = a.x, .y = a.y, .scale = a.scale}, stream.native); });
}

void softmax_backward(const SoftmaxBackward& a, Stream stream) {
  check_rank_2("softmax_backward: y", a.y);
  const std::int64_t rows = a.y.shape[0], width = a.y.shape[1];
  check_rows("softmax_backward: y", a.y, rows, width);
  check_rows("softmax_backward: dy", a.dy, rows, width);
  check_rows("softmax_backward: dx", a.dx, rows, width);
  on_device(
      a.y.device, [&] { BALLAST_ISA_CALL(cpu, softmax_backward, a, *stream.pool); },
      [&] {
        cuda::softmax_backward({.y = a.y, .dy = a.dy, .dx = a.dx, .scale = a.scale}, stream.native);
      });
}

void softmax_into(ProgramBuilder& pb, Buffer x, Buffer y, float scale) {
  pb.emit("softmax", {.reads = {x}, .writes = {y}}, [=](const Bindings& b) {
    softmax({.x = b.in(x), .y = b.out(y), .scale = scale}, b.stream());
  });
}

void softmax_backward_into(ProgramBuilder& pb, Buffer y, Buffer dy, Buffer dx, float scale) {
  pb.emit("softmax_backward", {.reads = {y, dy}, .writes = {dx}}, [=](const Bindings& b) {
    softmax_backward({.y = b.in(y), .dy = b.in(dy), .dx = b.out(dx), .scale = scale}, b.stream());
  });
}

}  // namespace ballast::ops
