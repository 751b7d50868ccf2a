#pragma once

#include "core/tensor.h"
#include "ops/kernels/update_rounding.h"
#include "plan/program_builder.h"

namespace ballast::ops {

// transformers' Adafactor, without a first moment.
struct AdafactorOptions {
  double eps_rows = 1e-30;
  double eps_scale = 1e-3;
  double clip_threshold = 1;
  double decay_rate = -0.8;
  double weight_decay = 0;
  bool scale_parameter = true, relative_step = true, warmup_init = false;
};

// Step k = 1, 2, ...:
//   b = 1 - k^decay_rate;   s = (grad_scale g)^2 + eps_rows
//   matrices (and stacks of them: all dimensions but the last two):
//     row = b row + (1 - b) mean of s over columns;   column = b column + (1 - b) mean over rows
//     u = g / sqrt(row / mean(row)) / sqrt(column)
//   vectors:  v = b v + (1 - b) s;   u = g / sqrt(v)
//   u = u / max(1, rms(u) / clip_threshold)
//   rate = lr, or with relative_step min(1 / sqrt(k), warmup_init ? 1e-6 k : 1e-2)
//   rate = rate max(eps_scale, rms(p))     with scale_parameter
//   p = p - rate weight_decay p - rate u
// Sums are kept in f64, in one order. Only whole tensors.
struct Adafactor {
  TensorView p;                // f32 or bf16, contiguous
  TensorView row;              // f32 [..., R]; absent for vectors
  TensorView column;           // f32 [..., C]; absent for vectors
  TensorView v;                // f32 [n]; absent for matrices
  ConstTensorView g;           // f32 or bf16, as many elements as p
  ConstTensorView grad_scale;  // [1] f32, optional
  TensorView workspace;        // adafactor_workspace() bytes
  AdafactorOptions options;
  std::int64_t step;  // k
  double learning_rate;
  ParameterRounding rounding = {};
};
void adafactor(const Adafactor& a, Stream stream);
std::int64_t adafactor_workspace(const Shape& p);

struct AdafactorBuffers {
  Buffer p, row = {}, column = {}, v = {}, g, grad_scale = {};
};
// Step and learning rate are those of b.step().
void adafactor(ProgramBuilder& pb, const AdafactorBuffers& on, const AdafactorOptions& options,
               const RecordedRounding& rounding = {});

}  // namespace ballast::ops
