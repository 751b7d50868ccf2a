#pragma once

#include "ops/kernels/cuda_view.h"
#include "ops/kernels/ordered_sum_cuda.h"

namespace ballast::ops::cuda {

// ops/gaussian_latent.h
struct GaussianLatent {
  View moments, noise, sample_weight;
  double weight = 1;
  View z, kl;
  double* scratch = nullptr;  // kSumScratchBytes
};
void gaussian_latent(const GaussianLatent& a, void* stream);

struct GaussianLatentBackward {
  View moments, noise, dz, sample_weight;
  double weight = 1;
  View dmoments;
};
void gaussian_latent_backward(const GaussianLatentBackward& a, void* stream);

}  // namespace ballast::ops::cuda
