#include "tests/support/test_device.h"

namespace ballast::support {

Device test_device() { return Device::cpu; }
Stream test_stream(ThreadPool& pool) { return {.pool = &pool}; }
void* allocate_for_device(std::size_t bytes) {
  return ::operator new(bytes, std::align_val_t(256));
}
void free_for_device(void* p) { ::operator delete(p, std::align_val_t(256)); }
void device_memory_is_read() {}

}  // namespace ballast::support
