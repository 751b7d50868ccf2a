#pragma once

#include <optional>
#include <variant>
#include <vector>

#include "memory/budget.h"
#include "models/wan/dit.h"
#include "plan/predict.h"
#include "plan/process_lines.h"
#include "plan/profile.h"
#include "plan/refusal.h"

namespace ballast::wan {

// What to plan, for which machine, inside which budget.
struct FitRequest {
  DitJob job;
  std::vector<WeightGroup> groups;
  Backend backend;
  MachineProfile profile;
  Budget budget;
  std::optional<MemoryPolicy> policy;  // nullopt: the fastest predicted one that fits
};

// A job recorded under one policy, with everything it needs.
struct PlannedRun {
  MemoryPolicy policy;
  ProgramSet set;
  MemoryPlan plan;
  std::vector<PredictedTime> times;  // by program
  std::vector<ProcessLine> lines;    // what the arenas do not hold

  Bytes lines_of(Tier t) const;
  Bytes needed(Tier t) const { return plan.peak_of(t) + lines_of(t); }
  const PredictedTime& step_time() const;
};

PlannedRun plan_run(const FitRequest& request, const MemoryPolicy& policy);

// Empty when it fits. On the CPU backend the host budget bounds both arenas together.
std::vector<Shortage> shortages(const FitRequest& request, const PlannedRun& run);

std::variant<PlannedRun, Refusal> fit(const FitRequest& request);

// Single changes that would make it fit or come closest, best first, each planned anew.
std::vector<Advice> advise(const FitRequest& request, std::int64_t frames, std::int64_t height,
                           std::int64_t width);

}  // namespace ballast::wan
