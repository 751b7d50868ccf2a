#include "memory/machine.h"

#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>

#include "memory/proc_text.h"
#include "memory/process_memory.h"

namespace ballast {
namespace {

namespace fs = std::filesystem;

std::optional<Bytes> as_bytes(std::optional<std::uint64_t> n) {
  return n ? std::optional(Bytes{*n}) : std::nullopt;
}

// name: "Max locked memory", as /proc/self/limits has it.
std::optional<Bytes> soft_limit(const std::optional<std::string>& limits, std::string_view name) {
  const auto line = limits ? line_value(*limits, name) : std::nullopt;
  if (!line) return std::nullopt;
  std::string_view rest = *line;  // "8388608    unlimited    bytes": soft, hard
  const std::string_view soft = take(rest, ' ');
  return soft == "unlimited" ? kUnlimited : as_bytes(parse_number(soft));
}

}  // namespace

Machine read_machine(const fs::path& root) {
  Machine m;
  m.page = {static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE))};
  m.cgroup = read_cgroup_limits(root);
  const auto limits = read_text(root / "proc/self/limits");
  m.locked = soft_limit(limits, "Max locked memory");
  m.address_space = soft_limit(limits, "Max address space");
  m.data = soft_limit(limits, "Max data size");
  m.stack = soft_limit(limits, "Max stack size");
  m.huge_page = as_bytes(read_number(root / "sys/kernel/mm/transparent_hugepage/hpage_pmd_size"));
  if (const auto info = read_text(root / "proc/meminfo")) {
    m.ram = as_bytes(kilobytes_of(*info, "MemTotal:"));
    m.ram_available = as_bytes(kilobytes_of(*info, "MemAvailable:"));
    m.swap = as_bytes(kilobytes_of(*info, "SwapTotal:"));
    m.swap_free = as_bytes(kilobytes_of(*info, "SwapFree:"));
    if (!m.huge_page) m.huge_page = as_bytes(kilobytes_of(*info, "Hugepagesize:"));
  }
  if (const auto nodes = read_text(root / "sys/devices/system/node/online")) {
    m.numa_nodes = count_list(*nodes);
  }
  if (const auto status = read_text(root / "proc/self/status")) {
    const auto cpus = line_value(*status, "Cpus_allowed_list:");
    if (cpus) m.affinity = count_list(*cpus);
    m.address_space_used = as_bytes(kilobytes_of(*status, "VmSize:"));
    m.data_used = as_bytes(kilobytes_of(*status, "VmData:"));
  }
  if (const auto own = process_memory(Counting::quick, (root / "proc/self").c_str())) {
    m.own_memory = own->total();
  }
  return m;
}

std::optional<Bytes> available_memory(const Machine& m) {
  if (!m.ram_available) return m.cgroup.memory_left;
  if (!m.cgroup.memory_left) return m.ram_available;
  return std::min(*m.ram_available, *m.cgroup.memory_left);
}

int usable_cpus(const Machine& m) {
  int cpus = m.affinity.value_or(1);
  if (m.cgroup.cpus && *m.cgroup.cpus < cpus) cpus = static_cast<int>(std::ceil(*m.cgroup.cpus));
  return std::max(cpus, 1);
}

std::optional<Bytes> disk_free(const fs::path& path) {
  std::error_code error;
  fs::path at = fs::absolute(path, error);
  if (error) return std::nullopt;
  struct statvfs found;
  while (statvfs(at.c_str(), &found) != 0) {
    if (!at.has_relative_path()) return std::nullopt;
    at = at.parent_path();
  }
  return Bytes{static_cast<std::uint64_t>(found.f_bavail) * found.f_frsize};
}

}  // namespace ballast
