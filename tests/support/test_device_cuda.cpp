#include <cuda_runtime_api.h>

#include "core/error.h"
#include "memory/cuda_check.h"
#include "memory/gpu.h"
#include "tests/support/test_device.h"

namespace ballast::support {
namespace {

GpuQueue& queue() {
  static GpuQueue q;
  return q;
}
bool started = false;  // a stream was given out, and may be used from then on

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
  started = true;
  return queue().stream(&pool);
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
  if (started) queue().finish();
}

}  // namespace ballast::support
