#pragma once

#include "core/device.h"
#include "memory/gpu.h"

namespace ballast {

// Operations alone are compiled differently with CUDA: the rest asks built_with_cuda() when it
// runs.
#ifdef BALLAST_CUDA
inline constexpr bool kBuiltWithCuda = true;
#else
inline constexpr bool kBuiltWithCuda = false;
#endif

template <class Cpu, class Cuda>
void on_device(Device d, Cpu&& cpu, Cuda&& cuda) {
  if (d == Device::cpu) return cpu();
  if constexpr (kBuiltWithCuda) {
    return cuda();
  } else {
    fail_without_cuda();
  }
}

}  // namespace ballast
