#include "memory/budget.h"

#include <algorithm>
#include <mutex>
#include <set>
#include <string>

#include "core/error.h"
#include "core/log.h"

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

namespace {

// Budgets are resolved for several parts of a command: each limit is told once.
bool first_time(std::string_view flag, const MemoryLimit& limit) {
  static std::mutex mutex;
  static std::set<std::string> told;
  const std::lock_guard lock(mutex);
  return told.insert(fmt::format("{} {}", flag, limit.name)).second;
}

void keep_within(Bytes& size, const std::optional<MemoryLimit>& limit, std::string_view flag,
                 bool declared, Limits limits) {
  if (!limit || size <= limit->most) return;
  // Who declares the limit itself is not told of the little that others hold of it.
  const bool told = limits != Limits::hold || (size - limit->most).count > size.count / 100;
  if (declared && told && first_time(flag, *limit)) {
    const bool killed =
        limit->kind != MemoryLimit::Kind::gpu && limit->kind != MemoryLimit::Kind::process;
    log::warn("--{} {}, but {}{}", flag, size, text_of(*limit),
              limits == Limits::hold ? "; planned within that"
              : killed               ? "; beyond that the kernel ends the run (--ignore-limits)"
                                     : "; beyond that allocations fail (--ignore-limits)");
  }
  if (limits == Limits::hold) size = limit->most;
}

}  // namespace

Budget resolve_budget(const Machine& machine, const DeclaredBudget& declared,
                      const BudgetMachine& target) {
  Budget budget = declared.ram ? Budget() : default_budget(machine);
  if (declared.ram) budget.host = *declared.ram;
  if (target.device == Device::cuda) budget.gpu = target.gpu_memory;
  if (declared.gpu) budget.gpu = *declared.gpu;
  if (declared.disk) budget.disk = *declared.disk;
  if (target.limits != Limits::foreign) {
    const auto ram = ram_limit(machine, target.threads);
    keep_within(budget.host, ram, "ram", declared.ram.has_value(), target.limits);
    std::optional<MemoryLimit> gpu;
    if (target.device == Device::cuda) {
      gpu = MemoryLimit{MemoryLimit::Kind::gpu, "free GPU memory", target.gpu_memory,
                        target.gpu_memory};
      keep_within(budget.gpu, gpu, "gpu", declared.gpu.has_value(), target.limits);
    }
    if (target.limits == Limits::hold) budget.ram_limit = ram, budget.gpu_limit = gpu;
  }
  if (!declared.gpu && target.device == Device::cpu) budget.gpu = budget.host;
  return budget;
}

}  // namespace ballast
