#pragma once

#include "ops/gated_residual.h"
#include "ops/layer_norm.h"

namespace ballast::ops {

// A residual sum and the norm of it: out = x + y * gate[index] (ops/gated_residual.h), then
// z = LN(out) f + add (ops/layer_norm.h) of out as it was rounded to its type. The bits are those
// of the two operations; a GPU reads and writes every row once. norm.y is another tensor than out.
struct ResidualNorm {
  GatedResidual residual;
  LayerNorm norm;  // its x is residual.out, whatever it says
};
void residual_norm(const ResidualNorm& a, Stream stream);

// Recorded form: writes out, makes z of the given type and the norm's statistics.
LayerNormOut residual_norm(ProgramBuilder& pb, Buffer x, Buffer y, const Gate& gate, Buffer out,
                           const NormTables& tables, float eps, DType z_dtype);
// The same into a z [R, C] of the caller.
LayerNormOut residual_norm_into(ProgramBuilder& pb, Buffer x, Buffer y, const Gate& gate,
                                Buffer out, const NormTables& tables, float eps, Buffer z);

}  // namespace ballast::ops
