// The recorded forms of ops/linear.h.
#include "ops/linear.h"
#include "plan/bindings.h"

namespace ballast::ops {
namespace {

// Addresses are not known yet, but roots start at multiples of 256, so a view's offset tells.
bool in_place(ProgramBuilder& pb, const LinearWeight& w) {
  const BufferSpec& spec = pb.set().spec(w.weight);
  return spec.dtype == DType::f32 && !w.scale && spec.offset % 4 == 0 &&
         pb.set().spec(spec.root).alignment % 4 == 0;
}

LinearSize size_of_call(ProgramBuilder& pb, Buffer x, Buffer y) {
  return {.rows = pb.shape(x)[0],
          .inputs = pb.shape(x)[1],
          .outputs = pb.shape(y)[1],
          .x = pb.dtype(x),
          .y = pb.dtype(y),
          .threads = pb.backend().threads};
}

Cost gemm_cost(const LinearSize& s) {
  return {.work = Work::gemm,
          .flops = 2.0 * static_cast<double>(s.rows) * static_cast<double>(s.inputs) *
                   static_cast<double>(s.outputs)};
}

// One scratch for a call of that size; the CUDA backend's products bring their own.
Buffer scratch(ProgramBuilder& pb, std::int64_t bytes) {
  return pb.backend().device == Device::cpu ? pb.workspace(bytes) : Buffer();
}

}  // namespace

Buffer linear(ProgramBuilder& pb, Buffer x, const LinearWeight& w, DType y_dtype) {
  const Buffer y = pb.temp("y", {pb.shape(x)[0], pb.shape(w.weight)[0]}, y_dtype);  // [R, N]
  linear_into(pb, x, w, y);
  return y;
}

void linear_into(ProgramBuilder& pb, Buffer x, const LinearWeight& w, Buffer y,
                 LinearOptions options) {
  LinearSize size = size_of_call(pb, x, y);
  size.w_in_place = in_place(pb, w);
  const Buffer workspace = scratch(pb, linear_workspace(size));
  pb.emit("linear",
          {.reads = {x, w.weight, w.scale, w.bias, options.accumulate ? y : Buffer()},
           .writes = {y, workspace},
           .cost = gemm_cost(size)},
          [=](const Bindings& b) {
            linear({.x = b.in(x),
                    .w = b.in(w.weight),
                    .scale = b.in_if(w.scale),
                    .bias = b.in_if(w.bias),
                    .y = b.out(y),
                    .workspace = b.out_if(workspace),
                    .alpha = options.alpha,
                    .accumulate = options.accumulate},
                   b.stream());
          });
}

Buffer linear_dx(ProgramBuilder& pb, Buffer dy, const LinearWeight& w, DType dx_dtype) {
  const Buffer dx = pb.temp("dx", {pb.shape(dy)[0], pb.shape(w.weight)[1]}, dx_dtype);  // [R, K]
  linear_dx_into(pb, dy, w, dx);
  return dx;
}

void linear_dx_into(ProgramBuilder& pb, Buffer dy, const LinearWeight& w, Buffer dx,
                    LinearOptions options) {
  LinearSize size = size_of_call(pb, dx, dy);
  size.w_in_place = in_place(pb, w);
  const Buffer workspace = scratch(pb, linear_dx_workspace(size));
  pb.emit("linear_dx",
          {.reads = {dy, w.weight, w.scale, options.accumulate ? dx : Buffer()},
           .writes = {dx, workspace},
           .cost = gemm_cost(size)},
          [=](const Bindings& b) {
            linear_dx({.dy = b.in(dy),
                       .w = b.in(w.weight),
                       .scale = b.in_if(w.scale),
                       .dx = b.out(dx),
                       .workspace = b.out_if(workspace),
                       .alpha = options.alpha,
                       .accumulate = options.accumulate},
                      b.stream());
          });
}

void linear_dw(ProgramBuilder& pb, Buffer x, Buffer dy, Buffer dw, Buffer dbias, float alpha) {
  const LinearSize size = size_of_call(pb, x, dy);
  const Buffer workspace = scratch(pb, linear_dw_workspace(size));
  pb.emit("linear_dw",
          {.reads = {x, dy, dw, dbias}, .writes = {dw, dbias, workspace}, .cost = gemm_cost(size)},
          [=](const Bindings& b) {
            linear_dw({.x = b.in(x),
                       .dy = b.in(dy),
                       .dw = b.out(dw),
                       .dbias = b.out_if(dbias),
                       .workspace = b.out_if(workspace),
                       .alpha = alpha},
                      b.stream());
          });
}

}  // namespace ballast::ops
