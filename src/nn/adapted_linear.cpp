#include "nn/adapted_linear.h"

#include "core/error.h"
#include "ops/copy.h"
#include "ops/gelu.h"

namespace ballast {

Buffer AppendedAdapter::all(ProgramBuilder& pb) const {
  return pb.columns(pb.rows(wide, 0, outputs), 0, inputs + columns);
}
Buffer AppendedAdapter::up(ProgramBuilder& pb) const {
  return pb.columns(pb.rows(wide, 0, outputs), inputs + first, own);
}
Buffer AppendedAdapter::down(ProgramBuilder& pb) const {
  return pb.columns(pb.rows(wide, outputs, columns), 0, inputs);
}
Buffer AppendedAdapter::above(ProgramBuilder& pb) const {
  return pb.columns(pb.rows(wide, 0, outputs + own), 0, inputs);
}
Buffer AppendedAdapter::temp(ProgramBuilder& pb, const char* name, Shape shape, DType dtype,
                             std::int64_t columns) {
  if (columns == 0) return pb.temp(name, shape, dtype);
  return pb.columns(pb.temp(name, {shape[0], shape[1] + room(columns, dtype)}, dtype), 0, shape[1]);
}

std::int64_t AdaptedLinear::rank(const ProgramBuilder& pb) const {
  return adapter.a ? pb.shape(adapter.a)[0] : 0;
}

AdaptedLinear AdaptedLinear::at(std::int64_t first_row, std::int64_t sample) const {
  AdaptedLinear l = *this;
  l.adapter.dropout.first_row = first_row;
  l.adapter.dropout.site.sample = sample;
  return l;
}

ops::QuantizedRows AdaptedLinear::quantized(ProgramBuilder& pb, Buffer x) const {
  return fp8 ? ops::quantize_rows(pb, x) : ops::QuantizedRows();
}

void AdaptedLinear::multiply(ProgramBuilder& pb, Buffer x, Buffer y,
                             const ops::LinearOptions& options,
                             const ops::QuantizedRows& shared) const {
  if (fp8) {
    ops::fp8_linear_into(pb, shared ? shared : quantized(pb, x), weight, y, options);
  } else if (appended) {
    ops::linear_into(pb, pb.row_columns(x, 0, appended.inputs + appended.columns),
                     {.weight = appended.all(pb), .bias = weight.bias}, y, options);
  } else {
    ops::linear_into(pb, x, weight, y, options);
  }
}

void AdaptedLinear::forward(ProgramBuilder& pb, Buffer x, Buffer y, Buffer u,
                            const ops::QuantizedRows& shared) const {
  if (appended) {
    ops::linear_into(pb, x, {.weight = appended.down(pb)}, appended.u(pb, x));
    if (u) ops::copy(pb, appended.u(pb, x), u);
    return multiply(pb, x, y, {});
  }
  const bool adapted = static_cast<bool>(adapter.a);
  if (adapted) ops::lora_up(pb, ops::lora_down(pb, x, adapter, u).u, adapter, y);
  multiply(pb, x, y, {.accumulate = adapted}, shared);
}

Buffer AdaptedLinear::forward(ProgramBuilder& pb, Buffer x, DType y_dtype, Buffer u) const {
  const Buffer y = pb.temp("y", {pb.shape(x)[0], pb.shape(weight.weight)[0]}, y_dtype);
  forward(pb, x, y, u);
  return y;
}

void AdaptedLinear::forward_gelu(ProgramBuilder& pb, Buffer x, Buffer y) const {
  if (appended) ops::linear_into(pb, x, {.weight = appended.down(pb)}, appended.u(pb, x));
  if (appended || !adapter.a) return multiply(pb, x, y, {.gelu = true});
  forward(pb, x, y);
  ops::gelu_into(pb, y, y);
}

void AdaptedLinear::forward_gelu(ProgramBuilder& pb, Buffer x, Buffer y, Buffer pre,
                                 Buffer u) const {
  if (!appended && (adapter.a || fp8)) {
    const Buffer sum = pre ? pre : y;
    forward(pb, x, sum, u);
    return ops::gelu_into(pb, sum, y);
  }
  if (appended) ops::linear_into(pb, x, {.weight = appended.down(pb)}, appended.u(pb, x));
  if (u) ops::copy(pb, appended.u(pb, x), u);
  multiply(pb, x, y, {.gelu = true, .pre = pre});
}

void AdaptedLinear::backward(ProgramBuilder& pb, Buffer x, Buffer dy, Buffer dx, bool accumulate,
                             Buffer u) const {
  const Buffer du = adapter_du(pb, dy);
  adapter_dw(pb, x, dy, du, u);
  if (dx) dx_from(pb, dy, du, dx, accumulate);
  weight_dw(pb, x, dy);
}

Buffer AdaptedLinear::backward_dx(ProgramBuilder& pb, Buffer dy, Buffer dx, bool accumulate) const {
  const Buffer du = adapter_du(pb, dy);
  dx_from(pb, dy, du, dx, accumulate);
  return du;
}

void AdaptedLinear::backward_dw(ProgramBuilder& pb, Buffer x, Buffer dy, Buffer du,
                                Buffer u) const {
  adapter_dw(pb, x, dy, du, u);
  weight_dw(pb, x, dy);
}

Buffer AdaptedLinear::adapter_du(ProgramBuilder& pb, Buffer dy) const {
  if (appended) {
    const Buffer du = appended.du(pb, dy);
    ops::linear_dx_into(pb, dy, {.weight = appended.up(pb)}, du);
    return du;
  }
  if (!adapter.a) return {};
  const Buffer du = pb.temp("du", {pb.shape(dy)[0], rank(pb)}, pb.dtype(dy));  // [R, r]
  ops::lora_du(pb, dy, adapter, du);
  return du;
}

void AdaptedLinear::adapter_dw(ProgramBuilder& pb, Buffer x, Buffer dy, Buffer du, Buffer u) const {
  if (appended) {
    if (!u) {
      u = pb.temp("u", {pb.shape(x)[0], appended.own}, pb.dtype(x));
      ops::linear_into(pb, x, {.weight = appended.down(pb)}, u);
    }
    const std::int64_t r = rank(pb);
    ops::lora_dw(pb, {x, pb.columns(u, 0, r)}, dy, pb.columns(du, 0, r), adapter, adapter_grads);
  } else if (adapter.a) {
    // d is as large as x and cheaper to form again than to keep.
    const ops::LoraOut kept =
        u ? ops::LoraOut{ops::lora_input(pb, x, adapter), u} : ops::lora_down(pb, x, adapter);
    ops::lora_dw(pb, kept, dy, du, adapter, adapter_grads);
  }
}

void AdaptedLinear::dx_from(ProgramBuilder& pb, Buffer dy, Buffer du, Buffer dx,
                            bool accumulate) const {
  if (appended) {
    return ops::linear_dx_into(pb, pb.row_columns(dy, 0, appended.outputs + appended.own),
                               {.weight = appended.above(pb)}, dx, {.accumulate = accumulate});
  }
  const bool adapted = static_cast<bool>(adapter.a);
  if (adapted) ops::lora_dx(pb, du, adapter, dx, accumulate);
  ops::linear_dx_into(pb, dy, weight, dx, {.accumulate = accumulate || adapted});
}

void AdaptedLinear::weight_dw(ProgramBuilder& pb, Buffer x, Buffer dy) const {
  if (dweight && dw == Dw::in_quanta) {
    ops::linear_dw(pb, x, dy, dweight, dbias, 1, dw_quantum);
  }
  if (dweight && dw != Dw::in_quanta) {
    check(!dbias, "a gradient at once of a layer with a bias");
    ops::linear_dw_at_once(pb, x, dy, dweight, dw == Dw::overwritten);
  }
}

}  // namespace ballast
