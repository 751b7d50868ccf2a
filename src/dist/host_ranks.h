#pragma once

#include <atomic>
#include <memory>
#include <string_view>

#include "core/bytes.h"
#include "dist/host_memory.h"
#include "memory/communicator.h"

namespace ballast {

// The transport "host": ranks are processes of one host, and bytes go through memory that they
// share. Each rank has two windows there: it writes a piece into one while the others read the last
// piece from the other. Who waits looks for 50 us, then sleeps (futex).
//
// GPU memory is copied too, by the thread of the lane.
class HostRanks {
 public:
  // Rank `rank` of a job of `ranks`, in this process; the memory's file descriptor stays the
  // caller's. Fails with ErrorCode::input where the memory is not that of this job.
  HostRanks(int memory_fd, std::string_view token, int rank, int ranks);
  // This rank takes part in nothing any more: whoever needs it fails.
  ~HostRanks();
  HostRanks(const HostRanks&) = delete;
  HostRanks& operator=(const HostRanks&) = delete;

  // Number `rank` of the `size` ranks of a group, for this process. Leaves the group when it is
  // destroyed; must not outlive the transport. A rank takes part in one exchange at a time.
  std::unique_ptr<Communicator> join(std::string_view group, int rank, int size);

  // Whether a rank of the job is lost: no exchange succeeds any more. SIGTERM is then no request to
  // save, but the launcher's to end soon.
  bool lost() const { return memory_.loss().has_value(); }

  // RAM that the ranks share, all together; a plan counts it once for the host.
  static Bytes memory_for(int ranks) { return HostMemory::size_for(ranks); }
  // What this process has mapped of it. Its RssShmem counts that, as do those of the other ranks.
  static Bytes mapped_by_process() { return HostMemory::mapped_by_process(); }

 private:
  class Member;

  HostMemory memory_;
  int rank_;
  std::atomic<bool> exchanging_{false};
};

}  // namespace ballast
