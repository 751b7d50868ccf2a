#pragma once

#include "plan/program_builder.h"

namespace ballast::ops {

// A low-rank adapter beside a linear layer: y += scale * (x A^T) B^T, composed of linear products.
// x: [R, K] and y: [R, N], f32 or bf16; the factors, their gradients and u = x A^T are f32.
struct LoraWeight {
  Buffer a;  // [r, K]
  Buffer b;  // [N, r]
  float scale = 1;
};

// y += scale * u B^T; returns u = x A^T, [R, r], which backward reads.
Buffer lora(ProgramBuilder& pb, Buffer x, const LoraWeight& w, Buffer y);

struct LoraGrads {
  Buffer da, db;  // of the factors' shapes, f32
};

// With du = scale * dy B: db += scale * dy^T u, da += du^T x, dx += du A. An invalid dx is not
// wanted.
void lora_backward(ProgramBuilder& pb, Buffer x, Buffer u, Buffer dy, const LoraWeight& w,
                   const LoraGrads& grads, Buffer dx);

}  // namespace ballast::ops
