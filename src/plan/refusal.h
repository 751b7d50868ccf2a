#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/bytes.h"
#include "core/error.h"
#include "memory/budget.h"
#include "plan/memory_plan.h"

namespace ballast {

// A tier that would need more than it may have.
struct Shortage {
  Tier tier = Tier::device;
  std::string program;  // in which phase most is needed
  std::string at;       // at which instruction
  Bytes needed, allowed;
  BytesByRole roles;  // what is alive there
  // What the arenas do not hold, where it is the files or libraries that take most.
  std::vector<std::pair<std::string, Bytes>> outside = {};
};

// What a plan misses of what it may have, by tier; what the arenas do not hold is part of `needed`.
using BytesByTier = std::array<Bytes, kTiers.size()>;
std::vector<Shortage> shortages(const MemoryPlan& plan, const BytesByTier& needed,
                                const BytesByTier& allowed);

// "does not fit: 2.600 MB more GPU memory needed", a line for each; detail stands behind every
// line. shared_ram: on the CPU, where the device tier is RAM. A line below names the limit of the
// system that a larger budget would exceed.
std::string shortage_lines(std::span<const Shortage> all, const Budget& budget, bool shared_ram,
                           std::string_view detail = "");

// The answer to a plan that does not fit: an answer, not a failure.
struct Refusal {
  std::string policy;                       // the leanest that was tried, or the one asked for
  std::array<Bytes, kTiers.size()> needed;  // by tier, whether short or not
  std::vector<Shortage> shortages;
  double seconds_per_step = 0;  // predicted, were there room
};

// What would happen if the user changed something. Numbers are those of the plan that it gives.
struct PlannedChange {
  std::string text;  // as it is typed or written: "--frames 41", "[adapter] rank = 8"
  bool fits = false;
  std::array<Bytes, kTiers.size()> needed = {};
  Bytes missing = {};                        // over all tiers; 0 when it fits
  double step_seconds = 0;                   // predicted
  double step_factor = 1;                    // against the leanest plan as things are; 0: unknown
  Bytes frees_device = {}, frees_host = {};  // of the leanest plan
};

}  // namespace ballast
