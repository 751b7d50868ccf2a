#pragma once

#include <span>
#include <vector>

#include "nn/adapted_linear.h"

namespace ballast {

// Layers that read the same input: q, k and v. Where nothing is dropped and the factors A of all of
// them lie side by side, x is read once for all their adapters: one product with the stacked A
// [n r, K], in backward one for its gradient and one for dx. Inlaid adapters (all of them, or none)
// are multiplied with the layers; in backward they are not, because one product for dx is less than
// one for each layer's dA more. Owns nothing.
class LinearGroup {
 public:
  LinearGroup(ProgramBuilder& pb, std::vector<AdaptedLinear> layers);

  // y[i] = W_i x + b_i + s B_i u_i. The u_i = A_i dropout(x) go side by side into u [R, sum of
  // their u_columns] of x's type, for backward; invalid: nobody asks for them.
  void forward(ProgramBuilder& pb, Buffer x, std::span<const Buffer> y, Buffer u) const;

  // y of one layer once more, from the u that forward made: no product with A follows another
  // order.
  void forward_again(ProgramBuilder& pb, Buffer x, std::size_t layer, Buffer y, Buffer u) const;

  // dx (+)= sum of W_i^T dy[i], gradients += outer products. u as in AdaptedLinear::backward.
  void backward(ProgramBuilder& pb, Buffer x, std::span<const Buffer> dy, Buffer dx,
                bool accumulate, Buffer u) const;

 private:
  bool appended() const { return static_cast<bool>(layers_[0].appended); }
  void backward_appended(ProgramBuilder& pb, Buffer x, std::span<const Buffer> dy, Buffer dx,
                         bool accumulate, Buffer u) const;
  Buffer part(ProgramBuilder& pb, Buffer u, std::size_t layer) const;  // its columns of u

  std::vector<AdaptedLinear> layers_;
  ops::LoraWeight stacked_;  // of all layers' A; a invalid: they are not stacked
  Buffer stacked_da_;
};

}  // namespace ballast
