#pragma once

#include <string>
#include <vector>

#include "core/bytes.h"
#include "core/error.h"
#include "plan/memory_plan.h"

namespace ballast {

// A tier that would need more than it may have.
struct Shortage {
  Tier tier = Tier::device;
  std::string program;  // in which phase most is needed
  std::string at;       // at which instruction
  Bytes needed, allowed;
  BytesByRole roles;  // what is alive there
};

// The answer to a plan that does not fit: an answer, not a failure.
struct Refusal {
  std::string policy;                       // the leanest that was tried, or the one asked for
  std::array<Bytes, kTiers.size()> needed;  // by tier, whether short or not
  std::vector<Shortage> shortages;
};

}  // namespace ballast
