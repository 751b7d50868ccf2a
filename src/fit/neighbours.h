#pragma once

#include <vector>

#include "fit/job.h"

namespace ballast::fit {

// How policies compare and which ones are next to each other; nothing is recorded for it.

// Whether a step of p has no less to compute than one of q: as much again, in pieces as small.
bool computes_no_less(const MemoryPolicy& p, const MemoryPolicy& q);

// Whether a step of p takes no less time than one of q where no more groups stay: it computes and
// brings no less, from the same place and no earlier. Where only the order of work or what waits
// in host memory differs, places decide, and either may win.
bool no_faster(const MemoryPolicy& p, const MemoryPolicy& q);

// The policy itself and those that differ from it in one choice, each also with the other number
// of slots.
std::vector<MemoryPolicy> neighbours(const Job& job, const MemoryPolicy& policy);

}  // namespace ballast::fit
