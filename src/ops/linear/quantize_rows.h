#pragma once

#include <string_view>

#include "core/tensor.h"
#include "plan/program_builder.h"

namespace ballast::ops {

// A matrix in eight bits with a scale per row, or one for the whole tensor: weights at load, or
// activations before an fp8 product.
//   scale = max(max|w| / MAX, 1e-8),  MAX = 127 for i8, 448 for f8_e4m3, 57344 for f8_e5m2
//   q = round(w / scale), ties to even, at most MAX in magnitude; the division is in f32
//   w' = q * scale
// A row of zeros gets scale 1e-8 and zeros. NaN or infinity in w is an input error that names the
// tensor; without a name, and on the GPU, which runs later, such a row gets a scale that is not
// finite instead, and so do all products with it: no NaN is lost. Rows may
// have any stride; the columns of a row are contiguous. The GPU works where q is; w may be host
// memory and start at any byte there.
struct QuantizeRows {
  ConstTensorView w;                   // [N, K] f32 bf16 f16
  TensorView q;                        // [N, K] i8 f8_e4m3 f8_e5m2
  TensorView scale;                    // [N] f32: one per row; [1]: one for the tensor
  std::string_view name = "a weight";  // for the message; empty: what is no number is passed on
};
void quantize_rows(const QuantizeRows& a, Stream stream);

void quantize_rows(ProgramBuilder& pb, Buffer w, Buffer q, Buffer scale);  // recorded form

// Activations as f8_e4m3 with a scale per row, in buffers of their own.
struct QuantizedRows {
  Buffer values, scale;  // [R, K] f8_e4m3, [R] f32; invalid: none were made

  explicit operator bool() const { return static_cast<bool>(values); }
};
QuantizedRows quantize_rows(ProgramBuilder& pb, Buffer x);

}  // namespace ballast::ops
