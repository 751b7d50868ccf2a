#pragma once

#include <array>

#include "plan/memory_plan.h"
#include "plan/profile.h"
#include "plan/program.h"

namespace ballast {

struct PredictedTime {
  double seconds = 0;                     // from the first instruction to the last
  std::array<double, kLaneCount> busy{};  // by lane
  double exposed_stall = 0;               // time the compute lane waits for others
};

// Plays the program on the profile: lanes in order, waits as planned.
PredictedTime predict(const ProgramSet& set, const MemoryPlan& plan, int program,
                      const MachineProfile& profile);

}  // namespace ballast
