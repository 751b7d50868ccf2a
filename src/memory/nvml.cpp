#include "memory/nvml.h"

#include <dlfcn.h>

namespace ballast {
namespace {

// As nvml.h declares them; that header is not on every machine that builds Ballast.
struct NvmlMemory {
  unsigned long long total = 0, free = 0, used = 0;
};
using Init = int (*)();
using HandleByBusId = int (*)(const char*, void**);
using MemoryInfo = int (*)(void*, NvmlMemory*);

}  // namespace

std::optional<Bytes> nvml_free_memory(const char* pci_bus_id) {
  void* const library = ::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) return std::nullopt;
  const auto init = reinterpret_cast<Init>(::dlsym(library, "nvmlInit_v2"));
  const auto shutdown = reinterpret_cast<Init>(::dlsym(library, "nvmlShutdown"));
  const auto handle =
      reinterpret_cast<HandleByBusId>(::dlsym(library, "nvmlDeviceGetHandleByPciBusId_v2"));
  const auto memory = reinterpret_cast<MemoryInfo>(::dlsym(library, "nvmlDeviceGetMemoryInfo"));
  std::optional<Bytes> found;
  if (init && shutdown && handle && memory && init() == 0) {
    void* device = nullptr;
    NvmlMemory m;
    if (handle(pci_bus_id, &device) == 0 && memory(device, &m) == 0) found = Bytes{m.free};
    shutdown();
  }
  ::dlclose(library);
  return found;
}

}  // namespace ballast
