#pragma once

#include "core/tensor.h"
#include "plan/program_builder.h"

namespace ballast::ops {

// The latent of a variational autoencoder and how far its distribution is from the normal one. Row
// by row `moments` has means m and then log-variances v, which count as if they were in -30 ... 20:
//   z = m + exp(v / 2) noise
//   kl += w sum((m^2 + exp(v) - 1 - v) / 2),  w = weight * sample_weight
// With weight = 1 / number of latent values this is their mean. Contiguous f32; the sum is kept in
// f64, block by block in order (ops/kernels/ordered_sum.h).
struct GaussianLatent {
  ConstTensorView moments;             // [R, 2 C]
  ConstTensorView noise;               // [R, C]
  ConstTensorView sample_weight = {};  // [1] f32, optional
  double weight = 1;
  TensorView z;   // [R, C]
  TensorView kl;  // [1] f64, added to
};
void gaussian_latent(const GaussianLatent& a, Stream stream);

// dm = dz + w m;  dv = (dz noise exp(v / 2) + w (exp(v) - 1)) / 2, 0 where v is out of its range.
struct GaussianLatentBackward {
  ConstTensorView moments, noise, dz;
  ConstTensorView sample_weight = {};
  double weight = 1;    // of kl in the loss
  TensorView dmoments;  // [R, 2 C]
};
void gaussian_latent_backward(const GaussianLatentBackward& a, Stream stream);

inline constexpr float kMinLogVariance = -30, kMaxLogVariance = 20;

// Recorded forms; sample_weight may be invalid.
struct GaussianLatentBuffers {
  Buffer moments, noise, sample_weight;
};
// z [R, C].
Buffer gaussian_latent(ProgramBuilder& pb, const GaussianLatentBuffers& in, double weight,
                       Buffer kl);
// dmoments [R, 2 C].
Buffer gaussian_latent_backward(ProgramBuilder& pb, const GaussianLatentBuffers& in, double weight,
                                Buffer dz);

}  // namespace ballast::ops
