#pragma once

#include "fit/needs.h"
#include "fit/planned_run.h"

namespace ballast::fit {

PlannedRun plan_run(const Request& request, const MemoryPolicy& policy);

// Empty when it fits. On the CPU backend the host budget bounds both arenas together.
std::vector<Shortage> shortages(const Request& request, const PlannedRun& run);
Bytes excess(const std::vector<Shortage>& missing);  // over the budget, all tiers together

// The fastest predicted plan that fits; the answer comes before it is looked for when nothing can.
Outcome find_plan(const Request& request);
// The same for requests that differ in their budgets only: what is known of the job's needs serves
// all of them. refused: gets the run that a refusal speaks of, where it is given.
Outcome find_plan(const Request& request, NeedsCache& known, PlannedRun* refused = nullptr);

// When the instructions of a program of the run are predicted to run; empty without rates.
Timeline timeline_of(const Request& request, const PlannedRun& run, int program);

// Of the groups that are blocks those that pass through slots, and of them those that come from
// host memory.
std::int64_t streamed_blocks(const Job& job, const MemoryPolicy& policy);
std::int64_t blocks_from_host(const Job& job, const MemoryPolicy& policy);

// Whether one of the leanest plans may fit, by live bytes: quick. A no is final for those plans.
bool may_fit(const Request& request, NeedsCache& known);

// The one of the leanest policies that misses least, or the one asked for.
MemoryPolicy closest_policy(const Request& request, NeedsCache& known);

}  // namespace ballast::fit
