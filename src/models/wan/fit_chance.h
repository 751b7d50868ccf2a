#pragma once

#include <vector>

#include "models/wan/fit.h"
#include "models/wan/job_needs.h"

namespace ballast::wan {

// What fit() knows of a request before it records a whole model.

// The same with the heaviest step and evaluation only: they decide the peaks in all but odd cases,
// and a run with many kinds of steps is searched as fast as one with a single kind.
FitRequest heaviest(const FitRequest& request);

// The policy with as many streamed blocks as were asked for; nothing: it is for other cases.
std::optional<MemoryPolicy> with_streamed_blocks(const FitRequest& request, MemoryPolicy policy);

// The leanest ones that the request leaves, with the optimizer's state of so many groups on disk.
std::vector<MemoryPolicy> lean_policies(const FitRequest& request, int disk_state_groups = 0);

// Groups whose state the disk has room for: 0 where no space on disk was allowed, or where nothing
// would be gained (an adapter's state is small).
int most_disk_state_groups(const FitRequest& request, KnownNeeds& known);

// What streams at least, were all the room on the device filled with groups that stay, each of
// them with no less than a block is known to take.
struct LeastStreamed {
  int resident = 0;  // groups that stay at most
  std::int64_t blocks = 0;
  Bytes bytes;  // with all that training keeps with them
};
LeastStreamed least_streamed(const FitRequest& request, const std::vector<Bytes>& group_bytes,
                             const MemoryPolicy& policy, const LeastNeeds& needs, Bytes block = {});

// What is missing in any case. Where host needs shrink with what is resident, it is the sum of both
// that does not, as long as a block streams.
Bytes surely_missing(const FitRequest& request, const std::vector<Bytes>& group_bytes,
                     const MemoryPolicy& policy, const LeastNeeds& needs, Bytes block = {});

enum class Chance : std::uint8_t {
  none,
  slight,     // a few tensors less might do
  by_length,  // shorter programs might
  good,
};
// By the leanest policies with the state of so many groups on disk.
Chance chance(const FitRequest& search, KnownNeeds& known, int disk_state_groups);
// Whether it is a good one: most noes are quick.
bool has_good_chance(const FitRequest& search, KnownNeeds& known, int disk_state_groups);

}  // namespace ballast::wan
