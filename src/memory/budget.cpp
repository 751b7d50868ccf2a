#include "memory/budget.h"

#include <algorithm>
#include <string>

#include "core/error.h"

namespace ballast {

Bytes reserve_of(Bytes available) { return std::max(Bytes{available.count / 20}, 512_MiB); }

Budget default_budget(const Machine& machine) {
  const auto available = available_memory(machine);
  if (!available) {
    fail(ErrorCode::input,
         "this machine does not say how much memory is available (no MemAvailable in "
         "/proc/meminfo and no control group limit)",
         {{"--ram 24GiB", "states it"}});
  }
  const Bytes host = *available - std::min(*available, reserve_of(*available));
  return {.gpu = host, .host = host, .disk = {}};
}

Bytes gpu_reserve_of(Bytes free) { return std::max(Bytes{free.count / 100}, 256_MiB); }

Bytes default_gpu_budget(Bytes free, Bytes libraries) {
  return free - std::min(free, gpu_reserve_of(free)) + libraries;
}

Budget resolve_budget(const Machine& machine, const BudgetFlags& flags, Device device,
                      Bytes gpu_memory) {
  Budget budget = default_budget(machine);
  if (device == Device::cuda) budget.gpu = gpu_memory;
  if (!flags.gpu.empty()) set_field(budget, "gpu", flags.gpu);
  if (!flags.ram.empty()) set_field(budget, "ram", flags.ram);
  if (!flags.disk.empty()) set_field(budget, "disk", flags.disk);
  if (flags.gpu.empty() && device == Device::cpu) budget.gpu = budget.host;
  return budget;
}

void set_field(Budget& budget, std::string_view field, std::string_view text) {
  bool known = false;
  std::string names;
  Budget::fields(budget, [&](std::string_view name, Bytes& value, std::string_view) {
    names += fmt::format("{}{}", names.empty() ? "" : ", ", name);
    if (name != field) return;
    known = true;
    if (const auto question = missing_unit(text)) {
      fail(ErrorCode::usage, fmt::format("--{}: {}", name, *question));
    }
    const auto size = parse_bytes(text);
    if (!size) {
      fail(ErrorCode::usage,
           fmt::format("{} is \"{}\", which is not a size", name, printable(text)),
           {{fmt::format("{} = 24GiB", name),
             "a number with B, kB, KiB, MB, MiB, GB, GiB, TB, TiB"}});
    }
    value = *size;
  });
  if (!known) {
    fail(ErrorCode::usage, fmt::format("a budget has no field \"{}\"", printable(field)),
         {{names, "are the fields it has"}});
  }
}

}  // namespace ballast
