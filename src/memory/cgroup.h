#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/bytes.h"

namespace ballast {

// A memory limit of one control group.
struct GroupMemory {
  std::string file;  // the file that sets it: "/sys/fs/cgroup/job/memory.max"
  Bytes limit;
  // The limit minus usage. Usage leaves out pages of files, which the kernel gives back before it
  // kills; a group whose usage cannot be read counts as unused.
  Bytes left;
};

// What the control groups of this process (v1, v2 or both) allow. A group's ancestors bind as much
// as the group itself, so each number is the tightest over all of them that can be seen. Nothing in
// force, or nothing readable, is nullopt.
struct CgroupLimits {
  std::optional<Bytes> memory;  // the least limit: v2 memory.max and memory.high, v1 limit_in_bytes
  std::optional<Bytes> memory_left;  // the least rest, maybe of another group
  std::vector<GroupMemory> groups;   // those that limit memory, innermost first
  std::optional<double> cpus;        // the least quota, in processors
};

// root stands for "/": /proc/self/{cgroup,mountinfo} and the mounted groups are read below it.
CgroupLimits read_cgroup_limits(const std::filesystem::path& root = "/");

// The directory, below root, of the innermost memory group of this process: v1 where its memory
// controller is mounted, else v2. nullopt where none can be seen.
std::optional<std::filesystem::path> memory_group(const std::filesystem::path& root = "/");

// How many processes of the group the kernel has killed for want of memory: v2 memory.events, v1
// memory.oom_control. nullopt where the group does not say.
std::optional<std::uint64_t> oom_kills_of(const std::filesystem::path& group);

}  // namespace ballast
