#pragma once

#include <optional>

#include "fit/needs.h"

namespace ballast::fit {

// What find_plan() finds where the caller leaves the policy open; nothing: no plan fits.
std::optional<PlannedRun> search_plan(const Request& request, NeedsCache& known);

}  // namespace ballast::fit
