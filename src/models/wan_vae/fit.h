#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "memory/budget.h"
#include "models/wan_vae/vae.h"
#include "plan/memory_plan.h"
#include "plan/process_lines.h"
#include "plan/profile.h"
#include "plan/refusal.h"

namespace ballast::wan_vae {

struct FitRequest {
  Job job;  // its policy is chosen
  std::vector<StoredUnit> encoder, decoder;
  Backend backend;
  MachineProfile profile;                     // what GPU libraries take, how long things take
  Budget budget;                              // 0: no limit
  std::vector<ProcessLine> other_lines = {};  // what the caller keeps besides
  std::optional<Policy> policy = {};          // this one or none
};

struct PlannedVae {
  Policy policy;
  MemoryPlan plan;
  std::vector<ProcessLine> lines;
  Bytes device, host;  // arenas and lines
  double seconds = 0;  // predicted for a chunk
  double twice = 0;    // what bands compute more than once, as a part of the whole
};

// What a plan needs besides its arenas, and in all.
struct NeededMemory {
  std::vector<ProcessLine> lines;
  Bytes device, host;  // arenas and lines
};
NeededMemory needed_memory(const ProgramSet& set, const MemoryPlan& plan,
                           const MachineProfile& profile,
                           const std::vector<ProcessLine>& other_lines);
// The tiers that are short of it; empty: it fits.
std::vector<Shortage> shortages(const MemoryPlan& plan, Bytes device, Bytes host,
                                const Budget& budget);

// How a decoder may use memory, the fastest first and the leanest last.
std::vector<Policy> decoding_policies(const Job& job);

// The fastest policy that fits, or what the leanest would need. Where nothing says how long things
// take, something is computed twice only if nothing else fits.
std::variant<PlannedVae, Refusal> fit(const FitRequest& request);

// "frames one by one, 2 bands (10 % computed twice)"; "resident" where nothing is spared.
std::string policy_text(const PlannedVae& p);

}  // namespace ballast::wan_vae
