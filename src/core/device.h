#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace ballast {

class GpuQueue;
class ThreadPool;

enum class Device : std::uint8_t { cpu, cuda };

constexpr std::string_view name_of(Device d) { return d == Device::cpu ? "cpu" : "cuda"; }

// Where an operation runs: the compute threads on the CPU, a CUDA stream on the GPU.
struct Stream {
  ThreadPool* pool = nullptr;
  void* native = nullptr;     // the cudaStream_t, which is all that a kernel needs
  GpuQueue* queue = nullptr;  // its owner (memory/gpu.h), for operations that call a library
  // On the GPU: memory for sums on their way (ops/kernels/ordered_sum_call.h), of those that
  // declare it.
  std::byte* scratch = nullptr;
};

}  // namespace ballast
