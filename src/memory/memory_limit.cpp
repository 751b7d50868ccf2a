#include "memory/memory_limit.h"

#include <fmt/format.h>

#include <algorithm>

#include "memory/disk_file.h"

namespace ballast {
namespace {

using Kind = MemoryLimit::Kind;

void take_tighter(std::optional<MemoryLimit>& least, MemoryLimit limit) {
  if (!least || limit.most < least->most) least = std::move(limit);
}

// What this process has already is part of its budget, and a tenth of the rest may be in caches
// that come and go.
Bytes most_of(Bytes limit, Bytes left, Bytes own) {
  return std::min(limit, left + Bytes{left.count / 10} + own);
}

// Address space that is reserved and never touched, so that no plan counts it.
struct Reserved {
  Bytes per_compute_thread;
  Bytes stacks;
};
// OpenBLAS reserves up to 256 MiB for each thread that computes, malloc 64 MiB that cannot be
// written yet. Beside those that compute there are readers, lanes and a few more.
Reserved reserved(const Machine& m) {
  constexpr int kOtherThreads = kDiskReaders + 6;
  const Bytes stack = m.stack && *m.stack != kUnlimited ? *m.stack : 8_MiB;
  return {256_MiB + stack, stack * std::uint64_t{kOtherThreads}};
}

void add_process_limits(std::optional<MemoryLimit>& least, const Machine& m, int threads) {
  const Bytes own = m.own_memory.value_or(Bytes{});
  const auto add = [&](const char* name, const std::optional<Bytes>& limit,
                       const std::optional<Bytes>& used, Bytes per_thread) {
    if (!limit || *limit == kUnlimited || !used) return;
    const Reserved r = reserved(m);
    const Bytes taken = *used + r.stacks +
                        (r.per_compute_thread + per_thread) * static_cast<std::uint64_t>(threads);
    const Bytes left = *limit - std::min(*limit, taken);
    take_tighter(least, {Kind::process, name, *limit, left.count == 0 ? left : left + own});
  };
  add("ulimit -v", m.address_space, m.address_space_used, 64_MiB);
  add("ulimit -d", m.data, m.data_used, {});
}

}  // namespace

std::optional<MemoryLimit> ram_limit(const Machine& machine, int threads) {
  const Bytes own = machine.own_memory.value_or(Bytes{});
  std::optional<MemoryLimit> least;
  if (machine.ram) take_tighter(least, {Kind::machine, "MemTotal", *machine.ram, *machine.ram});
  if (machine.ram && machine.ram_available) {
    take_tighter(least, {Kind::available, "MemAvailable", *machine.ram_available,
                         most_of(*machine.ram, *machine.ram_available, own)});
  }
  for (const GroupMemory& g : machine.cgroup.groups) {
    take_tighter(least, {Kind::control_group, g.file, g.limit, most_of(g.limit, g.left, own)});
  }
  add_process_limits(least, machine, threads);
  return least;
}

std::string text_of(const MemoryLimit& limit) {
  return fmt::format("{} is {}: at most {} can be used", limit.name, limit.limit, limit.most);
}

std::string limit_line(const MemoryLimit& limit) {
  return text_of(limit) + " (--ignore-limits plans beyond it)";
}

}  // namespace ballast
