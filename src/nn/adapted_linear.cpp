#include "nn/adapted_linear.h"

#include "ops/gelu.h"

namespace ballast {

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
  } else {
    ops::linear_into(pb, x, weight, y, options);
  }
}

void AdaptedLinear::forward(ProgramBuilder& pb, Buffer x, Buffer y, Buffer u,
                            const ops::QuantizedRows& shared) const {
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
  if (!adapter.a) return multiply(pb, x, y, {.gelu = true});
  forward(pb, x, y);
  ops::gelu_into(pb, y, y);
}

void AdaptedLinear::backward(ProgramBuilder& pb, Buffer x, Buffer dy, Buffer dx, bool accumulate,
                             Buffer u) const {
  const bool adapted = static_cast<bool>(adapter.a);
  if (adapted) {
    // d is as large as x and cheaper to form again than to keep.
    const ops::LoraOut kept =
        u ? ops::LoraOut{ops::lora_input(pb, x, adapter), u} : ops::lora_down(pb, x, adapter);
    ops::lora_backward(pb, kept, dy, adapter, adapter_grads, dx, accumulate);
  }
  if (dx) ops::linear_dx_into(pb, dy, weight, dx, {.accumulate = accumulate || adapted});
  if (dweight) ops::linear_dw(pb, x, dy, dweight, dbias);
}

}  // namespace ballast
