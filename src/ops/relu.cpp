#include "ops/relu.h"

#include "core/simd.h"
#include "ops/kernels/cuda_call.h"
#include "ops/kernels/on_device.h"
#include "ops/kernels/row_checks.h"
#include "ops/relu_cuda.h"
#include "plan/bindings.h"

namespace ballast::ops {

namespace cpu {
BALLAST_PER_ISA(void relu(const Relu& a, ThreadPool& pool))
BALLAST_PER_ISA(void relu_backward(const ReluBackward& a, ThreadPool& pool))
}  // namespace cpu

void relu(const Relu& a, Stream stream) {
  check_rank_2("relu: x", a.x);
  check_rows("relu: x", a.x, a.x.shape[0], a.x.shape[1]);
  check_rows("relu: y", a.y, a.x.shape[0], a.x.shape[1]);
  on_device(
      a.x.device, [&] { BALLAST_ISA_CALL(cpu, relu, a, *stream.pool); },
      [&] { cuda::relu({.x = a.x, .y = a.y}, stream.native); });
}

void relu_backward(const ReluBackward& a, Stream stream) {
  check_rank_2("relu_backward: x", a.x);
  check_rows("relu_backward: x", a.x, a.x.shape[0], a.x.shape[1]);
  check_rows("relu_backward: dy", a.dy, a.x.shape[0], a.x.shape[1]);
  check_rows("relu_backward: dx", a.dx, a.x.shape[0], a.x.shape[1]);
  on_device(
      a.x.device, [&] { BALLAST_ISA_CALL(cpu, relu_backward, a, *stream.pool); },
      [&] { cuda::relu_backward({.x = a.x, .dy = a.dy, .dx = a.dx}, stream.native); });
}

void relu_into(ProgramBuilder& pb, Buffer x, Buffer y) {
  pb.emit("relu", {.reads = {x}, .writes = {y}},
          [=](const Bindings& b) { relu({.x = b.in(x), .y = b.out(y)}, b.stream()); });
}

void relu_backward_into(ProgramBuilder& pb, Buffer x, Buffer dy, Buffer dx) {
  pb.emit("relu_backward", {.reads = {x, dy}, .writes = {dx}}, [=](const Bindings& b) {
    relu_backward({.x = b.in(x), .dy = b.in(dy), .dx = b.out(dx)}, b.stream());
  });
}

}  // namespace ballast::ops
