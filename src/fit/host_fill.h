#pragma once

#include "fit/needs.h"

namespace ballast::fit {

// As many of the groups that come from disk wait in host memory instead as the budget allows, where
// a step waits for them; also in place of what attention left there, if it is faster to compute
// that again. What is left, or one of them if that is faster, goes to the ring through which the
// others come. Where much of it has room there, or the GPU none for its map of it, another plan may
// be filled and returned; known: of the request.
PlannedRun fill_host_memory(const Request& request, PlannedRun lean, NeedsCache& known);

}  // namespace ballast::fit
