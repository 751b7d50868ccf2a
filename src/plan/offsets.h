#pragma once

#include "plan/memory_plan.h"

namespace ballast {

// plan_memory() in two halves, for whoever looks at many plans and runs none: places decide whether
// a plan fits, waits how long it takes. MemoryPlan::lifetimes, which only a run is watched by, stay
// empty.
MemoryPlan plan_offsets(const ProgramSet& set, const PlanOptions& options = {});
void plan_waits(const ProgramSet& set, MemoryPlan& plan);

}  // namespace ballast
