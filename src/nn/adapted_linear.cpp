#include "nn/adapted_linear.h"

#include "ops/gelu.h"

namespace ballast {

AdaptedLinear AdaptedLinear::at(std::int64_t first_row, std::int64_t sample) const {
  AdaptedLinear l = *this;
  l.adapter.dropout.first_row = first_row;
  l.adapter.dropout.site.sample = sample;
  return l;
}

void AdaptedLinear::forward(ProgramBuilder& pb, Buffer x, Buffer y) const {
  ops::linear_into(pb, x, weight, y);
  if (adapter.a) ops::lora(pb, x, adapter, y);
}

Buffer AdaptedLinear::forward(ProgramBuilder& pb, Buffer x, DType y_dtype) const {
  const Buffer y = pb.temp("y", {pb.shape(x)[0], pb.shape(weight.weight)[0]}, y_dtype);
  forward(pb, x, y);
  return y;
}

void AdaptedLinear::forward_gelu(ProgramBuilder& pb, Buffer x, Buffer y) const {
  if (!adapter.a) return ops::linear_into(pb, x, weight, y, {.gelu = true});
  forward(pb, x, y);
  ops::gelu_into(pb, y, y);
}

void AdaptedLinear::backward(ProgramBuilder& pb, Buffer x, Buffer dy, Buffer dx,
                             bool accumulate) const {
  if (dx) ops::linear_dx_into(pb, dy, weight, dx, {.accumulate = accumulate});
  if (dweight) ops::linear_dw(pb, x, dy, dweight, dbias);
  if (!adapter.a) return;
  // A d is cheaper to compute again than to keep: rank columns instead of the width.
  const Buffer d = ops::lora_input(pb, x, adapter);
  const Buffer u = ops::linear(pb, d, {.weight = adapter.a, .bias = {}, .scale = {}}, DType::f32);
  ops::lora_backward(pb, {d, u}, dy, adapter, adapter_grads, dx);
}

}  // namespace ballast
