#pragma once

#include "models/student/params.h"
#include "models/student/student.h"
#include "ops/linear/linear.h"
#include "plan/program_builder.h"

namespace ballast::student {

inline ops::LinearWeight linear_of(const Affine<Buffer>& w) { return {w.weight, w.bias, {}}; }

// What a block keeps of a sample from forward to backward; invalid: computed again.
struct BlockSaved {
  Buffer x;       // [L, C] with the shift added, always there
  Buffer qkv;     // [L, 3C]
  Buffer o, lse;  // [L, C], [H, L]
  Buffer x2;      // [L, C] behind attention
  Buffer pre;     // [L, 4C] before SiLU
};

// x1 = x + shift;  x2 = x1 + Wo MHA(LN1(x1)) + bo;  y = x2 + W2 silu(W1 LN2(x2) + b1) + b2.
// Softmax over all places of the sample, no position encoding. Owns nothing.
class Block {
 public:
  explicit Block(const Job& job) : job_(job) {}

  // shift [1, C] f32, ones [L, C]. With a `saved` what the policy keeps is named there.
  Buffer forward(ProgramBuilder& pb, const BlockParams<Buffer>& w, Buffer x, Buffer shift,
                 Buffer ones, BlockSaved* saved) const;
  // dx [L, C] is the gradient of y and becomes that of x; gradients and dshift [1, C] are added to.
  void backward(ProgramBuilder& pb, const BlockParams<Buffer>& w, const BlockParams<Buffer>& grads,
                BlockSaved saved, Buffer dx, Buffer shift, Buffer ones, Buffer dshift) const;

 private:
  BlockSaved inner(ProgramBuilder& pb, const BlockParams<Buffer>& w, Buffer x1, Buffer u,
                   Buffer y) const;

  const Job& job_;
};

}  // namespace ballast::student
