#pragma once

#include <optional>

#include "core/bytes.h"

namespace ballast {

// Free memory of the GPU at that place ("0000:3b:00.0"), asked of the driver's management library,
// which needs no context. nullopt where that library or the GPU is not there.
std::optional<Bytes> nvml_free_memory(const char* pci_bus_id);

}  // namespace ballast
