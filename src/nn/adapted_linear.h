#pragma once

#include "ops/fp8_linear.h"
#include "ops/linear.h"
#include "ops/lora.h"
#include "plan/program_builder.h"

namespace ballast {

// y = W x + b + s B A dropout(x) with an optional adapter and optional gradients. Owns nothing.
// The adapter's part is formed first (ops/lora.h) and the layer's own product adds to it, in
// backward likewise.
struct AdaptedLinear {
  ops::LinearWeight weight;
  ops::LoraWeight adapter;  // adapter.a invalid: none
  Buffer dweight, dbias;    // invalid: frozen
  ops::LoraGrads adapter_grads;
  bool fp8 = false;  // forward multiplies in f8_e4m3; backward and the adapter as ever

  bool trains() const { return dweight || adapter_grads.da; }
  std::int64_t rank(const ProgramBuilder& pb) const;  // of the adapter; 0: none

  // The same layer where x holds the rows from first_row on of the program's sample: what the
  // adapter's dropout depends on. Without dropout it makes no difference.
  AdaptedLinear at(std::int64_t first_row, std::int64_t sample) const;

  // What forward makes of x before it multiplies in f8_e4m3, for layers that read the same x: made
  // by one, given to all. Nothing where fp8 is off.
  ops::QuantizedRows quantized(ProgramBuilder& pb, Buffer x) const;

  // u = A dropout(x) goes into u [R, r] of x's type, for backward; invalid: nobody asks for it.
  void forward(ProgramBuilder& pb, Buffer x, Buffer y, Buffer u = {},
               const ops::QuantizedRows& shared = {}) const;
  Buffer forward(ProgramBuilder& pb, Buffer x, DType y_dtype, Buffer u = {}) const;
  // y = gelu of forward, where no backward follows: within the product if there is no adapter, and
  // then of a sum that was not rounded.
  void forward_gelu(ProgramBuilder& pb, Buffer x, Buffer y) const;
  // The layer's own product alone.
  void multiply(ProgramBuilder& pb, Buffer x, Buffer y, const ops::LinearOptions& options,
                const ops::QuantizedRows& shared = {}) const;

  // dx (+)= W^T dy, gradients += outer products. x may be invalid when nothing trains, u when
  // forward's is gone (it is computed again), dx when the caller does not want it.
  void backward(ProgramBuilder& pb, Buffer x, Buffer dy, Buffer dx, bool accumulate,
                Buffer u = {}) const;
};

}  // namespace ballast
