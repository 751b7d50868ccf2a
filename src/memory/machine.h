#pragma once

#include <filesystem>
#include <optional>

#include "core/bytes.h"
#include "memory/cgroup.h"

namespace ballast {

// What this machine has and what this process may use of it. A field is nullopt where the kernel
// does not say.
struct Machine {
  std::optional<Bytes> ram;            // MemTotal
  std::optional<Bytes> ram_available;  // MemAvailable: free, or given back on demand
  std::optional<Bytes> swap, swap_free;
  CgroupLimits cgroup;
  // Soft limits of this process; kUnlimited where there is none.
  std::optional<Bytes> locked;         // RLIMIT_MEMLOCK
  std::optional<Bytes> address_space;  // RLIMIT_AS: ulimit -v
  std::optional<Bytes> data;           // RLIMIT_DATA: ulimit -d
  std::optional<Bytes> stack;          // RLIMIT_STACK: what a thread's stack takes of both
  // What it has of them, and the RAM that only it can give back.
  std::optional<Bytes> address_space_used, data_used, own_memory;
  std::optional<int> numa_nodes;
  std::optional<int> affinity;     // processors this process may run on
  std::optional<Bytes> huge_page;  // of transparent huge pages, else of the default pool
  Bytes page;                      // of the running kernel, whatever root is
};

inline constexpr Bytes kUnlimited{UINT64_MAX};

// Never fails. root stands for "/": every file is read below it, so tests can bring their own.
Machine read_machine(const std::filesystem::path& root = "/");

// What the process can still take before the kernel swaps or kills: available RAM, or what its
// control groups leave if that is less.
std::optional<Bytes> available_memory(const Machine& m);

// Threads that can run at once: processors allowed, but not more than the CPU quota pays for
// (rounded up: a quota of 1.5 is worth two threads). At least 1.
int usable_cpus(const Machine& m);

// Space an unprivileged process may fill on the file system that holds `path`, or would hold it: of
// a path that does not exist, the nearest parent counts.
std::optional<Bytes> disk_free(const std::filesystem::path& path);

}  // namespace ballast
