#include "nn/adapted_linear.h"

namespace ballast {

AdaptedLinear AdaptedLinear::at(std::int64_t first_row, std::int64_t sample) const {
  AdaptedLinear l = *this;
  l.adapter.dropout.first_row = first_row;
  l.adapter.dropout.site.sample = sample;
  return l;
}

ops::QuantizedRows AdaptedLinear::quantized(ProgramBuilder& pb, Buffer x) const {
  return fp8 ? ops::quantize_rows(pb, x) : ops::QuantizedRows();
}

void AdaptedLinear::forward(ProgramBuilder& pb, Buffer x, Buffer y,
                            const ops::QuantizedRows& shared) const {
  if (fp8) {
    ops::fp8_linear_into(pb, shared ? shared : quantized(pb, x), weight, y);
  } else {
    ops::linear_into(pb, x, weight, y);
  }
  if (adapter.a) ops::lora(pb, x, adapter, y);
}

Buffer AdaptedLinear::forward(ProgramBuilder& pb, Buffer x, DType y_dtype,
                              const ops::QuantizedRows& shared) const {
  const Buffer y = pb.temp("y", {pb.shape(x)[0], pb.shape(weight.weight)[0]}, y_dtype);
  forward(pb, x, y, shared);
  return y;
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
