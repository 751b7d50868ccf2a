#pragma once

#include <optional>

#include "models/wan/fit.h"
#include "models/wan/job_needs.h"

namespace ballast::wan {

// What fit() finds where the caller leaves the policy open; nothing: no plan fits.
std::optional<PlannedRun> search_plan(const FitRequest& request, KnownNeeds& known);

}  // namespace ballast::wan
