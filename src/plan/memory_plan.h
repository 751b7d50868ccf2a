#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "core/bytes.h"
#include "core/to_size.h"
#include "plan/lifetimes.h"
#include "plan/program.h"
#include "plan/waits.h"

namespace ballast {

using BytesByRole = std::array<Bytes, kRoles>;

// One tier during one program.
struct TierUse {
  Bytes peak;         // persistent part included
  Bytes lower_bound;  // most bytes alive at once, persistent part included
  BytesByRole roles;  // what is alive at the instruction where most is
  std::string at;     // name of that instruction
};

struct ProgramUse {
  std::string name;
  std::array<TierUse, kTiers.size()> tiers;
  const TierUse& tier(Tier t) const { return tiers[to_size(t)]; }
};

// Where every byte of a run lives, and who waits for whom.
struct MemoryPlan {
  std::vector<std::uint64_t> offset;  // by id of a root buffer, inside its tier's arena
  std::array<Bytes, kTiers.size()> persistent;
  std::array<Bytes, kTiers.size()> peak;  // size of each arena
  std::vector<ProgramUse> programs;
  std::vector<Waits> waits;                      // by program
  std::vector<std::vector<Lifetime>> lifetimes;  // by program
  std::uint64_t guard_bytes = 0;

  Bytes peak_of(Tier t) const { return peak[to_size(t)]; }
};

struct PlanOptions {
  std::uint64_t guard_bytes = 0;  // free bytes behind every buffer, watched by the debug runner
};

// Persistent buffers lie at the bottom of each arena, the temporaries of each program above them.
MemoryPlan plan_memory(const ProgramSet& set, const PlanOptions& options = {});

// What plan_memory would at least need, in linear time: for ranking policies before packing one.
std::array<Bytes, kTiers.size()> live_bytes(const ProgramSet& set);

}  // namespace ballast
