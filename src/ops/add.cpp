#include "ops/add.h"

#include "core/error.h"
#include "core/simd.h"
#include "ops/add_cuda.h"
#include "ops/kernels/cuda_call.h"
#include "ops/kernels/on_device.h"
#include "plan/bindings.h"

namespace ballast::ops {

namespace cpu {
BALLAST_PER_ISA(void add_into(const AddInto& a, ThreadPool& pool))
}

namespace {

template <class View>
View as_rows(const View& v) {
  check(v.dtype == DType::f32 || v.dtype == DType::bf16, "add_into: an operand is {}", v.dtype);
  if (v.contiguous()) return View(v.data, v.dtype, Shape{1, v.elements()}, v.device);
  check(v.shape.rank() == 2 && v.strides[1] == 1, "add_into: a view {} with strides {}", v.shape,
        v.strides);
  return v;
}

}  // namespace

void add_into(const AddInto& a, Stream stream) {
  check(a.x.shape == a.y.shape, "add_into: x is {}, y is {}", a.x.shape, a.y.shape);
  AddInto rows = {.x = as_rows(a.x), .y = as_rows(a.y), .alpha = a.alpha};
  if (rows.x.shape != rows.y.shape) rows = a;  // one of the two has gaps: both row by row
  on_device(
      a.y.device, [&] { BALLAST_ISA_CALL(cpu, add_into, rows, *stream.pool); },
      [&] { cuda::add_into({.x = rows.x, .y = rows.y, .alpha = rows.alpha}, stream.native); });
}

void add_into(ProgramBuilder& pb, Buffer x, Buffer y, float alpha) {
  pb.emit("add", {.reads = {x, y}, .writes = {y}}, [=](const Bindings& b) {
    add_into({.x = b.in(x), .y = b.out(y), .alpha = alpha}, b.stream());
  });
}

}  // namespace ballast::ops
