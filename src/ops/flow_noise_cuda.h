#pragma once

#include "ops/kernels/cuda_view.h"

namespace ballast::ops::cuda {

// ops/flow_noise.h
struct FlowNoise {
  View x0, noise, t, x_t, target;
};
void flow_noise(const FlowNoise& a, void* stream);

}  // namespace ballast::ops::cuda
