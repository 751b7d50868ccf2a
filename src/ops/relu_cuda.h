#pragma once

#include "ops/kernels/cuda_view.h"

namespace ballast::ops::cuda {

// The operands of ops/relu.h.
struct Relu {
  View x, y;
};
void relu(const Relu& a, void* stream);

struct ReluBackward {
  View x, dy, dx;
};
void relu_backward(const ReluBackward& a, void* stream);

}  // namespace ballast::ops::cuda
