#pragma once

#include "ops/random_site.h"
#include "plan/program_builder.h"

namespace ballast::ops {

// Dropout of the adapter's input. Backward needs the same values as forward.
struct LoraDropout {
  double probability = 0;      // 0: nothing is recorded for it
  RandomSite site = {};        // random_site("dropout", name of the layer, index of the sample)
  std::int64_t first_row = 0;  // of x in the sample's rows, where x is a chunk of them
};

// A low-rank adapter beside a linear layer: y += scale * (d A^T) B^T, d = dropout(x), composed of
// linear products. x: [R, K] and y: [R, N], f32 or bf16; the factors are f32 or bf16, their
// gradients and u = d A^T are f32.
struct LoraWeight {
  Buffer a;  // [r, K]
  Buffer b;  // [N, r]
  float scale = 1;
  LoraDropout dropout = {};
};

// d = dropout(x), of x's type; x itself where nothing is dropped.
Buffer lora_input(ProgramBuilder& pb, Buffer x, const LoraWeight& w);

struct LoraOut {  // what backward reads
  Buffer d, u;    // [R, K], [R, r]
};
// y += scale * u B^T, u = d A^T.
LoraOut lora(ProgramBuilder& pb, Buffer x, const LoraWeight& w, Buffer y);

struct LoraGrads {
  Buffer da, db;  // of the factors' shapes, f32
};

// With du = scale * dy B: db += scale * dy^T u, da += du^T d, dx += dropout(du A). An invalid dx is
// not wanted.
void lora_backward(ProgramBuilder& pb, const LoraOut& kept, Buffer dy, const LoraWeight& w,
                   const LoraGrads& grads, Buffer dx);

}  // namespace ballast::ops
