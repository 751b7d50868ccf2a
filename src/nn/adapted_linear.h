#pragma once

#include "ops/linear.h"
#include "ops/lora.h"
#include "plan/program_builder.h"

namespace ballast {

// y = W x + b, with an optional adapter y += s B A dropout(x) and optional gradients. Owns nothing.
struct AdaptedLinear {
  ops::LinearWeight weight;
  ops::LoraWeight adapter;  // adapter.a invalid: none
  Buffer dweight, dbias;    // invalid: frozen
  ops::LoraGrads adapter_grads;

  bool trains() const { return dweight || adapter_grads.da; }

  // The same layer where x holds the rows from first_row on of the program's sample: what the
  // adapter's dropout depends on. Without dropout it makes no difference.
  AdaptedLinear at(std::int64_t first_row, std::int64_t sample) const;

  void forward(ProgramBuilder& pb, Buffer x, Buffer y) const;
  Buffer forward(ProgramBuilder& pb, Buffer x, DType y_dtype) const;
  // y = gelu of forward, where no backward follows: within the product if there is no adapter, and
  // then of a sum that was not rounded.
  void forward_gelu(ProgramBuilder& pb, Buffer x, Buffer y) const;

  // dx (+)= W^T dy, gradients += outer products. x may be invalid when nothing trains, dx when the
  // caller does not want it.
  void backward(ProgramBuilder& pb, Buffer x, Buffer dy, Buffer dx, bool accumulate) const;
};

}  // namespace ballast
