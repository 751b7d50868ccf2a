#pragma once

#include "core/tensor.h"
#include "plan/program_builder.h"

namespace ballast::ops {

// shadow = decay shadow + (1 - decay) p, written as shadow + (1 - decay) (p - shadow), so that a
// shadow that equals p stays it.
struct Ema {
  ConstTensorView p;  // f32 or bf16, contiguous
  TensorView shadow;  // f32, contiguous, as large as p
  double decay;
};
void ema(const Ema& a, Stream stream);

void ema(ProgramBuilder& pb, Buffer p, Buffer shadow, double decay);

}  // namespace ballast::ops
