#pragma once

#include "ops/kernels/cuda_view.h"

namespace ballast::ops::cuda {

// shadow += share (p - shadow); ops/ema.h
struct Ema {
  View p, shadow;
  float share = 0;
};
void ema(const Ema& a, void* stream);

}  // namespace ballast::ops::cuda
