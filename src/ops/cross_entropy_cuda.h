#pragma once

#include "ops/kernels/cuda_view.h"

namespace ballast::ops::cuda {

// The operands of ops/cross_entropy.h.
struct CrossEntropy {
  View x, labels, weight, losses, dx;
};
void cross_entropy(const CrossEntropy& a, void* stream);

}  // namespace ballast::ops::cuda
