#pragma once

#include "core/tensor.h"
#include "ops/adamw.h"
#include "ops/kernels/dynamic_map.h"
#include "plan/program_builder.h"

namespace ballast::ops {

// Adam whose moments are 8-bit codes in blocks of kStateBlock elements (ops/kernels/dynamic_map.h),
// as bitsandbytes has it. Step k = 1, 2, ... in f32:
//   g = grad_scale g;   m = signed_map[m] m_absmax;   v = unsigned_map[v] v_absmax
//   m = beta1 m + (1 - beta1) g;   v = beta2 v + (1 - beta2) g^2
//   p = round(p - lr k2 / k1 m / (sqrt(v) + k2 eps)),  k1 = 1 - beta1^k, k2 = sqrt(1 - beta2^k)
//   p = round(p (1 - lr weight_decay))                 when weight_decay > 0
// then absmax = the largest magnitude of each block and the codes of moment / absmax. Where g^2 is
// not finite, m and v become 0 and p stays.
//
// Rounding other than to nearest rounds p once, decay included. With `shift` the two lines that
// write p write the shift instead, and
//   old = p;   p = round(p + shift);   shift = round(shift + round(old - p))
// so weight decay acts on what is carried and has practically no effect on p. stabilize divides lr
// by max(1, sqrt(mean(g^2 / max(v, eps^2)))), where v is the raw code of the step before.
//
// A tensor may be cut at multiples of kStateBlock, unless stabilize is on.
struct AdamW8bit {
  TensorView p;                   // f32 or bf16, contiguous
  TensorView m, v;                // u8 codes, or f32 moments, as many as p
  TensorView m_absmax, v_absmax;  // [ceil(n / kStateBlock)] f32; absent with f32 moments
  TensorView shift;               // optional: p's dtype and size
  ConstTensorView g;              // f32 or bf16
  ConstTensorView grad_scale;     // [1] f32, optional
  AdamWOptions options;           // debias is that of the moments
  bool stabilize;
  std::int64_t step;  // k
  double learning_rate;
  ParameterRounding rounding = {};  // without shift only
};
void adamw_8bit(const AdamW8bit& a, Stream stream);
// Several tensors as of ops/adamw.h, all with the same betas, eps and dtypes, none stabilized.
void adamw_8bit(std::span<const AdamW8bit> tensors, Stream stream);

struct AdamW8bitBuffers {
  Buffer p, m = {}, m_absmax = {}, v = {}, v_absmax = {}, shift = {}, g;
  AdamWOptions options;
  RecordedRounding rounding = {};
};
// Step and learning rate are those of b.step(). stabilize: one tensor alone.
void adamw_8bit(ProgramBuilder& pb, std::vector<AdamW8bitBuffers> tensors, Buffer grad_scale,
                bool stabilize = false);

}  // namespace ballast::ops
