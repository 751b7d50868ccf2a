#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace ballast {

// The line of the kernel's log that says it killed this process for want of memory, later than so
// many seconds after boot; nullopt where there is none or the log may not be read. Inside a
// container the kernel's process numbers are others than ours, so finding nothing proves nothing.
// Reads /dev/kmsg below root, at most 16 MiB, without waiting.
std::optional<std::string> find_oom_kill(std::int64_t pid, double after,
                                         const std::filesystem::path& root = "/");

}  // namespace ballast
