#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "core/bytes.h"
#include "core/error.h"

namespace ballast {

// The system refused memory. The error (ErrorCode::device) names the limits of the process that are
// in force: ulimit -v and ulimit -d.
Error out_of_memory();

// The same for a thread: ulimit -v, -d and -u, the least pids.max of the control groups. what:
// "computing"; why: the system's words.
Error out_of_threads(std::string_view what, std::string_view why);
// The same for a process.
Error out_of_processes(std::string_view what, std::string_view why);

// "/sys/fs/cgroup/a/pids.max = 20": the least of the groups of this process, v1 or v2. root stands
// for "/".
std::optional<std::string> pids_limit(const std::filesystem::path& root = "/");

// Models of many files need more open files than shells allow: the soft limit becomes the hard one.
void raise_open_files_limit();

// ulimit -f; nullopt: unlimited.
std::optional<Bytes> file_size_limit();

// What helps against an error of the system that a limit of the process makes: EMFILE (ulimit -n),
// EFBIG (ulimit -f). Empty for all others.
std::vector<Advice> advice_for_errno(int error);

}  // namespace ballast
