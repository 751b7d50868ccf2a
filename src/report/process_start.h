#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace ballast {

// Facts by which a process is known again later. root stands for "/".

// Clock ticks from boot to the start of the process; nullopt where there is no such process, or
// only a dead one that nobody has waited for.
std::optional<std::uint64_t> process_start_ticks(std::int64_t pid,
                                                 const std::filesystem::path& root = "/");

// A random name the kernel gives itself at each boot; empty where it does not say.
std::string boot_id(const std::filesystem::path& root = "/");

// Processes the kernel has killed for want of memory since boot, in all groups.
std::optional<std::uint64_t> system_oom_kills(const std::filesystem::path& root = "/");

}  // namespace ballast
