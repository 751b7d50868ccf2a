// The recorded forms of ops/linear/linear.h.
#include "ops/add.h"
#include "ops/copy.h"
#include "ops/fill.h"
#include "ops/kernels/token_quantum.h"
#include "ops/linear/linear.h"
#include "ops/linear/linear_scratch.h"
#include "plan/bindings.h"

namespace ballast::ops {
namespace {

// Addresses are not known yet, but roots start at multiples of 256, so a view's offset tells.
bool in_place(ProgramBuilder& pb, const LinearWeight& w) {
  const BufferSpec& spec = pb.set().spec(w.weight);
  return spec.dtype == DType::f32 && !w.scale && spec.offset % 4 == 0 &&
         pb.set().spec(spec.root).alignment % 4 == 0;
}

bool in_sixteens(ProgramBuilder& pb, Buffer b) {
  const BufferSpec& spec = pb.set().spec(b);
  return pb.set().spec(spec.root).alignment % 16 == 0 &&
         cuda::in_sixteens(spec.offset, spec.shape[0], spec.strides[0], spec.dtype);
}

LinearSize size_of_call(ProgramBuilder& pb, Buffer x, const LinearWeight& w, Buffer y) {
  return {.rows = pb.shape(x)[0],
          .inputs = pb.shape(x)[1],
          .outputs = pb.shape(y)[1],
          .x = pb.dtype(x),
          .y = pb.dtype(y),
          .w_in_place = in_place(pb, w),
          .threads = pb.backend().threads,
          .device = pb.backend().device,
          .w = pb.dtype(w.weight),
          .scaled = static_cast<bool>(w.scale),
          .x_aligned = in_sixteens(pb, x),
          .y_aligned = in_sixteens(pb, y),
          .w_aligned = in_sixteens(pb, w.weight)};
}

Cost gemm_cost(const LinearSize& s) {
  return {.work = cuda::product_work(s.device, s.x, s.y),
          .flops = 2.0 * static_cast<double>(s.rows) * static_cast<double>(s.inputs) *
                   static_cast<double>(s.outputs)};
}

// On a GPU the products of a quantum are added to dw one after the other, each of which reads and
// writes all of it, or where dw is narrow side by side into partial sums.
Cost dw_cost(ProgramBuilder& pb, const LinearSize& s, std::int64_t quantum, Buffer x, Buffer dy,
             Buffer dw) {
  Cost cost = gemm_cost(s);
  if (s.device != Device::cuda) return cost;
  const cuda::DwMethod method = cuda::dw_method(s);
  const std::int64_t rows = method == cuda::DwMethod::quanta ? quantum : kTokenQuantum;
  const std::int64_t quanta = (s.rows + rows - 1) / rows;
  const auto bytes = [&](Buffer b) { return static_cast<double>(pb.set().spec(b).bytes); };
  cost.bytes = bytes(x) + bytes(dy) + 2 * static_cast<double>(quanta) * bytes(dw);
  if (method == cuda::DwMethod::quanta && quanta > 1)
    cost.launches = static_cast<std::uint32_t>(quanta);
  return cost;
}

}  // namespace

Buffer linear(ProgramBuilder& pb, Buffer x, const LinearWeight& w, DType y_dtype) {
  const Buffer y = pb.temp("y", {pb.shape(x)[0], pb.shape(w.weight)[0]}, y_dtype);  // [R, N]
  linear_into(pb, x, w, y);
  return y;
}

void linear_into(ProgramBuilder& pb, Buffer x, const LinearWeight& w, Buffer y,
                 LinearOptions options) {
  LinearSize size = size_of_call(pb, x, w, y);
  if (options.pre && !in_sixteens(pb, options.pre)) size.y_aligned = false;
  Cost cost = gemm_cost(size);
  if (options.pre && size.device == Device::cuda) {
    const bool both = cuda::one_product_for_both(size);
    if (!both) cost.flops *= 2;
    cost.launches = both ? static_cast<std::uint32_t>(cuda::products_for_both(size.rows)) : 2;
  }
  const Buffer workspace = pb.workspace(linear_workspace(size));
  const auto call = [=](const Bindings& b) {
    return Linear{.x = b.in(x),
                  .w = b.in(w.weight),
                  .scale = b.in_if(w.scale),
                  .bias = b.in_if(w.bias),
                  .y = b.out(y),
                  .workspace = b.out_if(workspace),
                  .alpha = options.alpha,
                  .accumulate = options.accumulate,
                  .gelu = options.gelu,
                  .pre = b.out_if(options.pre)};
  };
  pb.emit(
      "linear",
      {.reads = {x, w.weight, w.scale, w.bias, options.accumulate ? y : Buffer()},
       .writes = {y, options.pre, workspace},
       .cost = cost},
      [=](const Bindings& b) { linear(call(b), b.stream()); },
      [=](const Bindings& b) { linear_prepare(call(b), b.stream()); });
}

Buffer linear_dx(ProgramBuilder& pb, Buffer dy, const LinearWeight& w, DType dx_dtype) {
  const Buffer dx = pb.temp("dx", {pb.shape(dy)[0], pb.shape(w.weight)[1]}, dx_dtype);  // [R, K]
  linear_dx_into(pb, dy, w, dx);
  return dx;
}

void linear_dx_into(ProgramBuilder& pb, Buffer dy, const LinearWeight& w, Buffer dx,
                    LinearOptions options) {
  const LinearSize size = size_of_call(pb, dx, w, dy);
  const Buffer workspace = pb.workspace(linear_dx_workspace(size));
  const auto call = [=](const Bindings& b) {
    return LinearDx{.dy = b.in(dy),
                    .w = b.in(w.weight),
                    .scale = b.in_if(w.scale),
                    .dx = b.out(dx),
                    .workspace = b.out_if(workspace),
                    .alpha = options.alpha,
                    .accumulate = options.accumulate};
  };
  pb.emit(
      "linear_dx",
      {.reads = {dy, w.weight, w.scale, options.accumulate ? dx : Buffer()},
       .writes = {dx, workspace},
       .cost = gemm_cost(size)},
      [=](const Bindings& b) { linear_dx(call(b), b.stream()); },
      [=](const Bindings& b) { linear_dx_prepare(call(b), b.stream()); });
}

void linear_dw(ProgramBuilder& pb, Buffer x, Buffer dy, Buffer dw, Buffer dbias, float alpha,
               std::int64_t quantum) {
  const LinearSize size = size_of_call(pb, x, {.weight = dw}, dy);
  const Buffer workspace = pb.workspace(linear_dw_workspace(size));
  const auto call = [=](const Bindings& b) {
    return LinearDw{.x = b.in(x),
                    .dy = b.in(dy),
                    .dw = b.out(dw),
                    .dbias = b.out_if(dbias),
                    .workspace = b.out_if(workspace),
                    .alpha = alpha,
                    .quantum = quantum};
  };
  pb.emit(
      "linear_dw",
      {.reads = {x, dy, dw, dbias},
       .writes = {dw, dbias, workspace},
       .cost = dw_cost(pb, size, quantum, x, dy, dw)},
      [=](const Bindings& b) { linear_dw(call(b), b.stream()); },
      [=](const Bindings& b) { linear_dw_prepare(call(b), b.stream()); });
}

void linear_dw_at_once(ProgramBuilder& pb, Buffer x, Buffer dy, Buffer dw, bool overwrite) {
  if (pb.backend().device == Device::cpu) {
    const bool narrow = pb.dtype(dw) != DType::f32;
    const Buffer sum = narrow ? pb.temp("dw", pb.shape(dw), DType::f32, Role::gradient) : dw;
    if (narrow || overwrite) fill(pb, sum, 0);
    linear_dw(pb, x, dy, sum, {});
    if (narrow && overwrite) copy(pb, sum, dw);
    if (narrow && !overwrite) add_into(pb, sum, dw);
    return;
  }
  const LinearSize size = size_of_call(pb, x, {.weight = dw}, dy);
  const Buffer workspace = pb.workspace(linear_dw_workspace(size));
  const auto call = [=](const Bindings& b) {
    return LinearDw{.x = b.in(x),
                    .dy = b.in(dy),
                    .dw = b.out(dw),
                    .workspace = b.out_if(workspace),
                    .at_once = true,
                    .overwrite = overwrite};
  };
  pb.emit(
      "linear_dw",
      {.reads = {x, dy, overwrite ? Buffer() : dw},
       .writes = {dw, workspace},
       .cost = gemm_cost(size)},
      [=](const Bindings& b) { linear_dw(call(b), b.stream()); },
      [=](const Bindings& b) { linear_dw_prepare(call(b), b.stream()); });
}

}  // namespace ballast::ops
