#pragma once

#include <array>
#include <vector>

#include "plan/memory_plan.h"
#include "plan/profile.h"
#include "plan/program.h"

namespace ballast {

struct PredictedTime {
  double seconds = 0;                     // from the first instruction to the last
  std::array<double, kLaneCount> busy{};  // by lane
  double exposed_stall = 0;               // time the compute lane waits for others
};

// When each instruction of a program runs, in seconds from its start.
struct Timeline {
  struct Span {
    double begin = 0, end = 0;
  };
  std::vector<Span> instructions;  // as recorded
};

// Plays the program on the profile: lanes in order, waits as planned. timeline: filled where it is
// given; its last end is PredictedTime::seconds.
PredictedTime predict(const ProgramSet& set, const MemoryPlan& plan, int program,
                      const MachineProfile& profile, Timeline* timeline = nullptr);

}  // namespace ballast
