#pragma once

#include "core/tensor.h"
#include "plan/program_builder.h"

namespace ballast::ops {

// In f64, because 1 - beta2 has only a few digits left in f32.
struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.01;
};

// Adam with decoupled weight decay, for step k = 1, 2, ...:
//   g = grad_scale g
//   p = (1 - lr weight_decay) p
//   m = beta1 m + (1 - beta1) g
//   v = beta2 v + (1 - beta2) g^2
//   p = p - lr (m / (1 - beta1^k)) / (sqrt(v / (1 - beta2^k)) + eps)
// Coefficients are formed in f64, elements in f32.
struct AdamW {
  TensorView p, m, v;          // f32, one shape, contiguous
  ConstTensorView g;           // f32 or bf16
  ConstTensorView grad_scale;  // [1] f32, optional: the clipping factor
  AdamWOptions options;
  std::int64_t step;  // k
  double learning_rate;
};
void adamw(const AdamW& a, Stream stream);

// Step and learning rate are those of b.step().
void adamw(ProgramBuilder& pb, Buffer p, Buffer m, Buffer v, Buffer g, Buffer grad_scale,
           const AdamWOptions& options);

}  // namespace ballast::ops
