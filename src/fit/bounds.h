#pragma once

#include <vector>

#include "fit/needs.h"

namespace ballast::fit {

// What find_plan() knows of a request before it records a whole model.

// The same with the heaviest step and evaluation only: they decide the peaks in all but odd cases,
// and a run with many kinds of steps is searched as fast as one with a single kind.
Request heaviest(const Request& request);

// The policy with as many streamed blocks as were asked for; nothing: it is for other cases.
std::optional<MemoryPolicy> with_streamed_blocks(const Request& request, MemoryPolicy policy);

// The leanest ones that the request leaves, with the optimizer's state of so many groups on disk.
std::vector<MemoryPolicy> lean_policies(const Request& request, int disk_state_groups = 0);

// Groups whose state the disk has room for: 0 where no space on disk was allowed, or where nothing
// would be gained (an adapter's state is small).
int max_disk_state_groups(const Request& request, NeedsCache& known);

// What streams at least, were all the room on the device filled with groups that stay, each of
// them with no less than a block is known to take.
struct MinStreamed {
  int resident = 0;  // groups that stay at most
  std::int64_t blocks = 0;
  Bytes bytes;  // with all that training keeps with them
};
MinStreamed min_streamed(const Request& request, const std::vector<Bytes>& group_bytes,
                         const MemoryPolicy& policy, const NeedsLowerBound& needs,
                         Bytes block = {});

// What is missing in any case. Where host needs shrink with what is resident, it is the sum of both
// that does not, as long as a block streams.
Bytes missing_lower_bound(const Request& request, const std::vector<Bytes>& group_bytes,
                          const MemoryPolicy& policy, const NeedsLowerBound& needs,
                          Bytes block = {});

enum class FitOdds : std::uint8_t {
  none,
  slight,     // a few tensors less might do
  by_length,  // shorter programs might
  good,
};
// By the leanest policies with the state of so many groups on disk.
FitOdds fit_odds(const Request& search, NeedsCache& known, int disk_state_groups);
// Whether it is a good one: most noes are quick.
bool has_good_odds(const Request& search, NeedsCache& known, int disk_state_groups);

}  // namespace ballast::fit
