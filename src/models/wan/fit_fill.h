#pragma once

#include <optional>

#include "models/wan/fit.h"
#include "models/wan/job_needs.h"

namespace ballast::wan {

// How a policy is filled up to the budget.

PlannedRun complete(const FitRequest& request, RecordedJob recorded);
bool fits(const FitRequest& request, RecordedJob recorded);
// Nothing: it does not fit, which is known before anything is timed.
std::optional<PlannedRun> complete_if_fits(const FitRequest& request, RecordedJob recorded);

// As many groups resident as the budget allows. A group that stays may take more than its weights
// with it (gradients, moments), so what one more costs is learned from the plans that were too big.
// Nothing: its lanes are busy for longer than `seconds` even so, or host memory is short where one
// more is too much for the device; fewer only need more of both.
std::optional<PlannedRun> fill_with_groups(const FitRequest& request, const MemoryPolicy& lean,
                                           KnownNeeds& known, double seconds);

// As many blocks keep all their activations as the budget allows.
PlannedRun fill_with_activations(const FitRequest& request, PlannedRun lean);

// As many of the groups that come from disk wait in host memory instead as the budget allows, where
// a step waits for them; also in place of what attention left there, if it is faster to compute
// that again. What is left, or one of them if that is faster, goes to the ring through which the
// others come.
PlannedRun fill_host_memory(const FitRequest& request, PlannedRun lean);

}  // namespace ballast::wan
