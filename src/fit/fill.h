#pragma once

#include <optional>

#include "fit/needs.h"

namespace ballast::fit {

// How a policy is filled up to the budget; host memory in host_fill.h.

// Reads that take turns in much memory are slower.
MachineProfile rates_under(const MemoryPolicy& policy, MachineProfile profile);

PlannedRun complete(const Request& request, Recording recorded);
bool fits(const Request& request, Recording recorded);
// Nothing: it does not fit, which is known before anything is timed; missing: then by how much.
std::optional<PlannedRun> complete_if_fits(const Request& request, Recording recorded,
                                           std::vector<Shortage>* missing = nullptr);

// As many groups resident as the budget allows. A group that stays may take more than its weights
// with it (gradients, moments), so what one more costs is learned from the plans that were too big.
// Nothing: its lanes are busy for longer than `seconds` even so, or host memory is short where one
// more is too much for the device; fewer only need more of both.
std::optional<PlannedRun> fill_with_groups(const Request& request, const MemoryPolicy& lean,
                                           NeedsCache& known, double seconds);

// As many blocks keep all their activations as the budget allows.
PlannedRun fill_with_activations(const Request& request, PlannedRun lean);

}  // namespace ballast::fit
