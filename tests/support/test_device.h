#pragma once

#include <cstddef>
#include <new>
#include <vector>

#include "core/device.h"

// Tests of operations run on the CPU, or, with BALLAST_TEST_DEVICE=cuda in the environment, on the
// GPU: their tensors then lie in memory that both can touch.
namespace ballast::support {

Device test_device();

// Where a test's operations run; asked for right before each. On the GPU they run later: the
// memory's owner waits for what was started since (see device_memory_is_read) before the test
// looks.
Stream test_stream(ThreadPool& pool);

void* allocate_for_device(std::size_t bytes);
void free_for_device(void* p);
// Call before the host reads what operations may have written.
void device_memory_is_read();

template <class T>
struct DeviceAllocator {
  using value_type = T;
  DeviceAllocator() = default;
  template <class Other>
  DeviceAllocator(const DeviceAllocator<Other>&) {}  // NOLINT: all are the same
  T* allocate(std::size_t n) { return static_cast<T*>(allocate_for_device(n * sizeof(T))); }
  void deallocate(T* p, std::size_t) { free_for_device(p); }
  friend bool operator==(DeviceAllocator, DeviceAllocator) { return true; }
};
template <class T>
using DeviceVector = std::vector<T, DeviceAllocator<T>>;

}  // namespace ballast::support
