#pragma once

#include <cstdint>
#include <string_view>

#include "core/error.h"

namespace ballast {

class GpuQueue;
class ThreadPool;

#ifdef BALLAST_CUDA
inline constexpr bool kBuiltWithCuda = true;
#else
inline constexpr bool kBuiltWithCuda = false;
#endif

enum class Device : std::uint8_t { cpu, cuda };

constexpr std::string_view name_of(Device d) { return d == Device::cpu ? "cpu" : "cuda"; }

// Where an operation runs: the compute threads on the CPU, a CUDA stream on the GPU.
struct Stream {
  ThreadPool* pool = nullptr;
  void* native = nullptr;     // the cudaStream_t, which is all that a kernel needs
  GpuQueue* queue = nullptr;  // its owner (memory/gpu.h), for operations that call a library
};

template <class Cpu, class Cuda>
void on_device(Device d, Cpu&& cpu, Cuda&& cuda) {
  if (d == Device::cpu) return cpu();
  if constexpr (kBuiltWithCuda) {
    return cuda();
  } else {
    fail(ErrorCode::device, "this build of Ballast has no CUDA support",
         {{"--device cpu", "runs on the CPU"}});
  }
}

}  // namespace ballast
