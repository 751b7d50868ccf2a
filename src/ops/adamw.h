#pragma once

#include <span>
#include <vector>

#include "core/tensor.h"
#include "ops/adamw_coefficients.h"
#include "ops/kernels/update_rounding.h"
#include "plan/program_builder.h"

namespace ballast::ops {

// Where the start from zero moments is made up for; the same in exact arithmetic.
enum class Debias : std::uint8_t {
  moments,  // m / (1 - beta1^k), v / (1 - beta2^k)
  betas,    // b = (beta^k - beta) / (beta^k - 1) takes the place of beta: optimi
};

// In f64, because 1 - beta2 has only a few digits left in f32.
struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.01;
  Debias debias = Debias::moments;
  double rate = 1;  // factor on the step's learning rate, where it is recorded
};

AdamWCoefficients adamw_coefficients(const AdamWOptions& o, std::int64_t step,
                                     double learning_rate);

// Adam with decoupled weight decay, for step k = 1, 2, ...:
//   g = grad_scale g
//   p = (1 - lr weight_decay) p
//   m = beta1 m + (1 - beta1) g
//   v = beta2 v + (1 - beta2) g^2
//   p = p - lr (m / (1 - beta1^k)) / (sqrt(v / (1 - beta2^k)) + eps)
// Coefficients are formed in f64, elements in f32; p is rounded once, at the end. With stochastic
// rounding a bf16 v is rounded so too: nearest rounding holds it still when beta2 > 0.996.
// All operands are contiguous and have as many elements as p; first_element of the rounding may be
// anything, so a tensor may be cut anywhere.
struct AdamW {
  TensorView p;                // f32 or bf16
  TensorView m, v;             // both f32 or both bf16
  ConstTensorView g;           // f32 or bf16
  ConstTensorView grad_scale;  // [1] f32, optional: the clipping factor
  AdamWOptions options;
  std::int64_t step;  // k
  double learning_rate;
  ParameterRounding rounding = {};
  // [2] f32, optional: lr and 1 - lr weight_decay in place of those above
  // (ops/stableadamw_scale.h).
  ConstTensorView rates = {};
};
void adamw(const AdamW& a, Stream stream);
// Several tensors of the same types, kind of rounding, step and clipping factor, kAdamWTensors at
// most: on a GPU one launch, which begins and ends once. A launch takes as long for that as for two
// million elements.
void adamw(std::span<const AdamW> tensors, Stream stream);

// Recorded: step and learning rate are those of b.step().
struct AdamWBuffers {
  Buffer p, m, v, g;
  AdamWOptions options;
  RecordedRounding rounding = {};
  Buffer rates = {};
};
void adamw(ProgramBuilder& pb, std::vector<AdamWBuffers> tensors, Buffer grad_scale);

}  // namespace ballast::ops
