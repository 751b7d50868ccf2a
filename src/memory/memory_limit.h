#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/bytes.h"
#include "memory/machine.h"

namespace ballast {

// A limit of the system on the memory of this process. Beyond it the kernel ends the process or
// refuses memory, whatever budget was declared.
struct MemoryLimit {
  enum class Kind : std::uint8_t {
    control_group,
    machine,    // MemTotal
    available,  // MemAvailable
    process,    // ulimit -v, ulimit -d
    gpu,
  };
  Kind kind = Kind::machine;
  std::string name;  // "/sys/fs/cgroup/job/memory.max", "MemTotal", "ulimit -v"
  Bytes limit;       // its value
  Bytes most;        // a budget can be, with what the process has already

  bool operator==(const MemoryLimit&) const = default;
};

// The tightest limit on RAM; nullopt where the system shows none. threads: that will compute, since
// each of them takes address space.
std::optional<MemoryLimit> ram_limit(const Machine& machine, int threads);

// "/sys/fs/cgroup/job/memory.max is 14.00 MB: at most 13.20 MB can be used".
std::string text_of(const MemoryLimit& limit);
// The same for a refusal, with the flag that plans beyond it.
std::string limit_line(const MemoryLimit& limit);

}  // namespace ballast
