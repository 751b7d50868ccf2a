#include "report/memory_monitor.h"

#include <algorithm>

namespace ballast {

const MemoryNumbers& MemoryMonitor::sample(const MemoryNumbers& arenas, Counting counting) {
  now_ = arenas;
  const auto process = process_memory(counting);
  now_.ram = process ? process->total() : Bytes{};
  if (samples_++ == 0) first_ram_ = now_.ram;
  most_.device = std::max(most_.device, now_.device);
  most_.host = std::max(most_.host, now_.host);
  most_.disk = std::max(most_.disk, now_.disk);
  most_.ram = std::max(most_.ram, now_.ram);
  return now_;
}

std::int64_t MemoryMonitor::growth() const {
  return static_cast<std::int64_t>(now_.ram.count) - static_cast<std::int64_t>(first_ram_.count);
}

std::optional<const char*> MemoryMonitor::above_plan() const {
  if (most_.device > planned_.device) return "device";
  if (most_.host > planned_.host) return "host";
  if (most_.disk > planned_.disk) return "disk";
  if (most_.ram > planned_.ram) return "ram";
  return std::nullopt;
}

}  // namespace ballast
