#pragma once

namespace ballast::ops::cuda {

__device__ __forceinline__ float silu_of(float x) { return x / (expf(-x) + 1.0f); }

}  // namespace ballast::ops::cuda
