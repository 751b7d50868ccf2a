#pragma once

#include <variant>
#include <vector>

#include "models/wan/fit.h"

namespace ballast::wan {

// fit() where the caller has switched checkpointing or offloading on or off: the fastest predicted
// plan among those that keep to the switches.
std::variant<PlannedRun, Refusal> fit_switched(const FitRequest& request);

// What the switches leave, fastest first.
std::vector<MemoryPolicy> switched_policies(const FitRequest& request);

}  // namespace ballast::wan
