#pragma once

#include "core/tensor.h"
#include "ops/adamw.h"
#include "plan/program_builder.h"

namespace ballast::ops {

// StableAdamW's learning rate of a step, for one tensor: smaller where the gradient goes beyond
// what its second moment says.
//   g = grad_scale g;   v = b v + (1 - b) g^2, the second moment of this step with Debias::betas
//   rms = sqrt(mean(g^2 / max(v, eps^2)))
//   lr = lr / max(1, rms)
//   rates = lr, 1 - lr weight_decay: what adamw() takes in place of its own
// v stays as it is; adamw() computes the same again and keeps it. The sum is kept in f64, in one
// order. Only whole tensors.
struct StableAdamWScale {
  ConstTensorView v;           // f32 or bf16, contiguous: of the step before
  ConstTensorView g;           // f32 or bf16, as many elements
  ConstTensorView grad_scale;  // [1] f32, optional
  TensorView rates;            // [2] f32
  AdamWOptions options;        // debias is that of the betas
  std::int64_t step;           // k = 1, 2, ...
  double learning_rate;
};
void stableadamw_scale(const StableAdamWScale& a, Stream stream);

struct StableAdamWScaleBuffers {
  Buffer v, g, grad_scale = {};
};
// Step and learning rate are those of b.step().
Buffer stableadamw_scale(ProgramBuilder& pb, const StableAdamWScaleBuffers& on,
                         const AdamWOptions& options);

}  // namespace ballast::ops
