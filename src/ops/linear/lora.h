#pragma once

#include "ops/kernels/random_site.h"
#include "plan/program_builder.h"

namespace ballast::ops {

// What an adapter leaves out in training. Backward needs the same values as forward.
struct LoraDropout {
  double probability = 0;      // of x's elements; 0: nothing is recorded for it
  double hidden = 0;           // of u's elements
  double ranks = 0;            // of u's columns, for all rows of a sample
  double module = 0;           // of all of u; where it stays it is as large as ever
  RandomSite site = {};        // random_site("dropout", name of the layer, index of the sample)
  std::int64_t first_row = 0;  // of x in the sample's rows, where x is a chunk of them

  bool any() const { return probability > 0 || hidden > 0 || ranks > 0 || module > 0; }
};

// A low-rank adapter beside a linear layer: y = scale * u B^T, u = d A^T with d = dropout(x), or
// what the drops of u leave of it, composed of linear products. x: [R, K] and y: [R, N], f32 or
// bf16; the factors are f32 or bf16, their gradients f32.
//
// Rounding: u = d A^T is rounded to x's type, du = scale * dy B to dy's, and y to its own type
// before anything else is added to it. The adapter comes first and the layer's own product adds to
// it: what a product adds to costs it nothing, and writing y once more would.
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
// u, into u [R, r] of x's type, or a buffer of its own where u is invalid.
LoraOut lora_down(ProgramBuilder& pb, Buffer x, const LoraWeight& w, Buffer u = {});
// y = scale * u B^T.
void lora_up(ProgramBuilder& pb, Buffer u, const LoraWeight& w, Buffer y);

struct LoraGrads {
  Buffer da, db;  // of the factors' shapes, f32
};

// du = scale * dy B less what was dropped of u, into du [R, r] of dy's type.
void lora_du(ProgramBuilder& pb, Buffer dy, const LoraWeight& w, Buffer du);
// dx = dropout(du A), or with accumulate dx += that.
void lora_dx(ProgramBuilder& pb, Buffer du, const LoraWeight& w, Buffer dx, bool accumulate);
// db += scale * dy^T u; da += du^T d.
void lora_dw(ProgramBuilder& pb, const LoraOut& kept, Buffer dy, Buffer du, const LoraWeight& w,
             const LoraGrads& grads);

// du and db alone.
void lora_up_backward(ProgramBuilder& pb, Buffer u, Buffer dy, const LoraWeight& w, Buffer db,
                      Buffer du);
// da and dx alone. An invalid dx is not wanted.
void lora_down_backward(ProgramBuilder& pb, Buffer d, Buffer du, const LoraWeight& w, Buffer da,
                        Buffer dx, bool accumulate);

}  // namespace ballast::ops
