#pragma once

#include <vector>

#include "models/wan/fit.h"

namespace ballast::wan {

// What the search of fit() tries.

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
constexpr int kFewGroups = 8;
std::vector<MemoryPolicy> every_policy(const DitJob& job, int most_disk_state_groups);

}  // namespace ballast::wan
