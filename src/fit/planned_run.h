#pragma once

#include <variant>
#include <vector>

#include "fit/request.h"
#include "plan/memory_plan.h"
#include "plan/predict.h"
#include "plan/refusal.h"

namespace ballast::fit {

// A job recorded under one policy, with everything it needs.
struct PlannedRun {
  AnyJob job;  // as it was planned: in one of its ways
  MemoryPolicy policy;
  ProgramSet set;
  MemoryPlan plan;
  std::vector<PredictedTime> times;             // by program
  std::vector<ProcessLine> lines;               // what the arenas do not hold
  std::vector<std::vector<StepProgram>> steps;  // by kind

  Bytes lines_of(Tier t) const { return sum_lines(lines, t); }
  Bytes needed(Tier t) const { return plan.peak_of(t) + lines_of(t); }
  // Of RAM: on the CPU both arenas are there.
  Bytes needed_ram() const {
    const bool both = set.backend.device == Device::cpu;
    return needed(Tier::host) + (both ? needed(Tier::device) : Bytes{});
  }
  double seconds_of(std::string_view program) const;  // 0: there is none of that name
  // All that a step of a kind runs.
  double seconds_of_step(std::size_t kind) const;
  double seconds_per_step() const { return seconds_of_step(0); }
  // Of them those that follow what computes it: norms, updates.
  double seconds_of_update() const;
  // The program that the first kind of step spends most of its time in.
  const PredictedTime& main_program() const;
};

using Outcome = std::variant<PlannedRun, Refusal>;

}  // namespace ballast::fit
