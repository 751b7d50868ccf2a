#include <cuda_runtime_api.h>

#include "core/error.h"
#include "memory/cuda_check.h"
#include "memory/gpu.h"
#include "ops/kernels/ordered_sum_cuda.h"
#include "tests/support/test_device.h"

namespace ballast::support {
namespace {

GpuQueue& queue() {
  static GpuQueue q;
  return q;
}
bool busy = false;  // something was started since the host last waited

}  // namespace

Device test_device() {
  static const Device device = [] {
    const char* wanted = std::getenv("BALLAST_TEST_DEVICE");
    if (!wanted || std::string_view(wanted) != "cuda") return Device::cpu;
    open_gpu();
    return Device::cuda;
  }();
  return device;
}

Stream test_stream(ThreadPool& pool) {
  if (test_device() == Device::cpu) return {.pool = &pool};
  busy = true;
  // Of operations that ran before, whatever they left.
  static const GpuArena scratch = [] {
    constexpr Bytes size = {ops::cuda::kColumnScratchBytes};
    static_assert(ops::cuda::kSumScratchBytes <= ops::cuda::kColumnScratchBytes);
    GpuArena memory(size, "sums of a test");
    gpu_fill(memory.base(), 0xff, size);
    return memory;
  }();
  Stream stream = queue().stream(&pool);
  stream.scratch = scratch.base();
  return stream;
}

void* allocate_for_device(std::size_t bytes) {
  if (test_device() == Device::cpu) return ::operator new(bytes, std::align_val_t(256));
  void* p = nullptr;
  check_cuda(cudaMallocManaged(&p, bytes > 0 ? bytes : 1), "making a test's tensor");
  return p;
}

void free_for_device(void* p) {
  if (test_device() == Device::cpu) return ::operator delete(p, std::align_val_t(256));
  device_memory_is_read();
  cudaFree(p);
}

void device_memory_is_read() {
  if (!busy) return;
  queue().finish();
  busy = false;
}

}  // namespace ballast::support
