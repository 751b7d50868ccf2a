#include "report/memory_monitor.h"

#include <algorithm>
#include <array>

namespace ballast {

std::string_view display_name_of(std::string_view name, bool gpu) {
  if (name == "device") return gpu ? "GPU memory" : "RAM (compute share)";
  if (name == "host") return gpu ? "pinned RAM" : "RAM (buffers)";
  if (name == "ram") return "RAM";
  return name;
}

bool is_for_gpu(const MemoryNumbers& planned) {
  return planned.device.count > 0 && planned.ram < planned.device + planned.host;
}

const MemoryNumbers& MemoryMonitor::sample(const MemoryNumbers& arenas, Counting counting) {
  now_ = arenas;
  if (gpu_) now_.device = gpu_();
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

std::optional<MemoryMonitor::Excess> MemoryMonitor::above_plan() const {
  std::array<Bytes, 4> planned;
  std::size_t i = 0, j = 0;
  MemoryNumbers::each(planned_, [&](const char*, Bytes b) { planned[i++] = b; });
  std::optional<Excess> found;
  MemoryNumbers::each(most_, [&](const char* what, Bytes most) {
    const Bytes allowed = planned[j++];
    if (!found && most > allowed) found = {what, most, allowed};
  });
  return found;
}

}  // namespace ballast
