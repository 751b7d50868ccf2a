#pragma once

#include "core/tensor.h"
#include "ops/kernels/update_rounding.h"
#include "plan/program_builder.h"

namespace ballast::ops {

struct SgdOptions {
  double momentum = 0;
  double weight_decay = 0;
};

//   g = grad_scale g + weight_decay p
//   b = momentum b + g          (b starts as 0; without momentum b is g)
//   p = p - lr b
// In f32; operands are contiguous and have as many elements as p.
struct Sgd {
  TensorView p;                // f32 or bf16
  TensorView b;                // f32 or bf16; absent when momentum is 0
  ConstTensorView g;           // f32 or bf16
  ConstTensorView grad_scale;  // [1] f32, optional
  SgdOptions options;
  double learning_rate;
  ParameterRounding rounding = {};
};
void sgd(const Sgd& a, Stream stream);

// The learning rate is that of b.step().
void sgd(ProgramBuilder& pb, Buffer p, Buffer b, Buffer g, Buffer grad_scale,
         const SgdOptions& options, const RecordedRounding& rounding = {});

}  // namespace ballast::ops
