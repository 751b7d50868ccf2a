#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace ballast {

// What a launcher tells a process about its place among the ranks of a job.
struct RankPlace {
  int rank = 0, ranks = 1;              // of the job
  int local_rank = 0, local_ranks = 1;  // of this host
  int memory_fd = -1;                   // HostMemory, which the ranks of this host share
  std::string token;                    // of the job
};

// From BALLAST_RANK, BALLAST_RANKS, BALLAST_LOCAL_RANK, BALLAST_LOCAL_RANKS, BALLAST_RANK_MEMORY
// and BALLAST_JOB_TOKEN; nullopt: none of them is set, this process is no rank. Some that are
// missing or do not fit together are ErrorCode::usage. Programs that this process starts do not
// inherit the memory.
std::optional<RankPlace> this_rank();

// The same variables for a rank: name and value.
std::vector<std::pair<std::string, std::string>> environment_of(const RankPlace& place);

}  // namespace ballast
