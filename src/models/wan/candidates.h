#pragma once

#include <vector>

#include "fit/job.h"
#include "models/wan/dit.h"

namespace ballast::wan {

// Policies that a search tries for a transformer.

// What is tried, fastest first: weights stay before they stream, activations are kept before they
// are computed again, host memory is used before disk. Each list is leaner than the one before it,
// and looked at only where nothing before it fits.
std::vector<std::vector<MemoryPolicy>> candidates(const DitJob& job);

// Every policy that may need least somewhere: one that computes or copies more needs less for
// tensors, but its programs are longer and have to be kept as well. Where their length is not what
// decides, those that keep the least in any case.
std::vector<MemoryPolicy> last_resort(const DitJob& job, bool length_decides);

// All that a policy can say, kept_blocks and larger chunks aside: for models with so few groups
// that thousands of programs are recorded in seconds. Of them a plan may miss by what one
// instruction takes, and any policy may be the one that fits.
std::vector<MemoryPolicy> every_policy(const DitJob& job, int max_disk_state_groups);

// The plans that need least, of which any refusal speaks: what they trade is device for host
// memory.
std::vector<MemoryPolicy> leanest_policies(const DitJob& job);

// What the switches leave, fastest first.
std::vector<MemoryPolicy> switched_policies(const DitJob& job, const fit::Switches& switches);

// Sizes that lists do not have, for plans whose steps wait for nothing: the largest first.
std::vector<std::int64_t> larger_chunks(const DitJob& job);
std::vector<std::int64_t> larger_head_groups(const DitJob& job);

}  // namespace ballast::wan
