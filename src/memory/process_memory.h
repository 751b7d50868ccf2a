#pragma once

#include <optional>

#include "core/bytes.h"

namespace ballast {

// Memory of this process that only it can give back: anonymous pages, and shared memory it maps.
// Pages of files do not count, the kernel drops them by itself.
struct ProcessMemory {
  Bytes anonymous;
  Bytes shared;  // RssShmem

  Bytes total() const { return anonymous + shared; }
};

// Where the anonymous pages are counted. The kernel's running counters (status) lag by a batch of
// pages per thread or processor, megabytes on a large machine, so a plan is judged by a walk over
// the page tables (smaps_rollup). That costs 5 ms per GiB of 4 KiB pages and 0.1 ms per GiB of
// huge pages, against 10 us for the counters.
// smaps_rollup gives shared memory only as a proportional share, so that number always comes from
// status.
enum class Counting { exact, quick };

// Allocates nothing, so it can be sampled inside a step. Without smaps_rollup
// (CONFIG_PROC_PAGE_MONITOR off) exact falls back to the counters; nullopt where /proc says
// nothing. proc_self is for tests.
std::optional<ProcessMemory> process_memory(Counting counting = Counting::exact,
                                            const char* proc_self = "/proc/self");

}  // namespace ballast
