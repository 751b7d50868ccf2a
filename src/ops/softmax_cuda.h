#pragma once

#include "ops/kernels/cuda_view.h"

namespace ballast::ops::cuda {

struct Softmax {
  View x, y;
  float scale = 1;
};
void softmax(const Softmax& a, void* stream);

struct SoftmaxBackward {
  View y, dy, dx;
  float scale = 1;
};
void softmax_backward(const SoftmaxBackward& a, void* stream);

}  // namespace ballast::ops::cuda
