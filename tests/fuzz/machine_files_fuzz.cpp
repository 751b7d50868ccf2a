// The kernel's files about this machine and process, of which one is replaced: the first byte
// chooses it ('a' is the first of the list), the rest is its content.

#include <memory>
#include <vector>

#include "core/system_limits.h"
#include "fuzz.h"
#include "memory/machine.h"
#include "memory/process_memory.h"
#include "report/kernel_log.h"
#include "report/process_start.h"

namespace ballast::fuzz {
namespace {

struct KernelFile {
  const char* path;
  const char* content;
};

// Both versions of control groups.
constexpr KernelFile kFiles[] = {
    {"proc/self/cgroup", "7:pids:/p\n4:memory,cpu:/job\n0::/a/b\n"},
    {"proc/self/mountinfo",
     "30 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
     "31 20 0:27 / /sys/fs/memory rw - cgroup cgroup rw,memory,cpu\n"},
    {"sys/fs/cgroup/a/b/memory.max", "1000000000\n"},
    {"sys/fs/cgroup/a/memory.stat", "anon 5\nfile 1000\n"},
    {"sys/fs/cgroup/a/cpu.max", "150000 100000\n"},
    {"sys/fs/cgroup/a/pids.max", "100\n"},
    {"sys/fs/memory/job/memory.stat", "hierarchical_memory_limit 500000\ntotal_cache 3\n"},
    {"sys/fs/memory/job/memory.oom_control", "oom_kill_disable 0\noom_kill 2\n"},
    {"proc/meminfo", "MemTotal: 16384 kB\nMemAvailable: 8192 kB\nSwapTotal: 0 kB\n"},
    {"proc/self/limits", "Max locked memory  8388608  unlimited  bytes\n"},
    {"proc/self/status", "VmHWM: 12 kB\nRssAnon: 8 kB\nRssShmem: 0 kB\nCpus_allowed_list: 0-3,8\n"},
    {"proc/self/smaps_rollup", "Rss: 12 kB\nAnonymous: 8 kB\n"},
    {"sys/devices/system/node/online", "0-1\n"},
    {"proc/7/stat", "7 (a (b) c) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 1234 20\n"},
    {"proc/vmstat", "nr_free_pages 7\noom_kill 1\n"},
    {"proc/sys/kernel/random/boot_id", "0123-4567\n"},
    {"dev/kmsg", "6,1,98765432,-;Out of memory: Killed process 7 (ballast) total-vm:1kB\n"},
};

void read_all(const std::string& root) {
  const Machine m = read_machine(root);
  require(usable_cpus(m) >= 1);
  available_memory(m);
  if (m.cgroup.memory) require(m.cgroup.memory_left && *m.cgroup.memory_left <= *m.cgroup.memory);
  for (const GroupMemory& g : m.cgroup.groups) require(g.left <= g.limit);
  if (const auto group = memory_group(root)) oom_kills_of(*group);
  pids_limit(root);
  process_memory(Counting::exact, (root + "/proc/self").c_str());
  process_memory(Counting::quick, (root + "/proc/self").c_str());
  process_start_ticks(7, root);
  boot_id(root);
  system_oom_kills(root);
  find_oom_kill(7, 1, root);
}

}  // namespace

void one_input(Input input) {
  static const std::vector<std::unique_ptr<MemoryFile>> files = [] {
    std::vector<std::unique_ptr<MemoryFile>> all;
    for (const KernelFile& f : kFiles) {
      all.push_back(std::make_unique<MemoryFile>(std::string("machine/") + f.path));
      all.back()->write(f.content);
    }
    return all;
  }();
  const std::size_t chosen = input.byte() - std::size_t{'a'};
  if (chosen >= files.size()) return;
  files[chosen]->write(input.rest());
  read_all(memory_folder() + "/machine");
  files[chosen]->write(kFiles[chosen].content);
}

}  // namespace ballast::fuzz
