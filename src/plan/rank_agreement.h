#pragma once

#include <cstdint>
#include <span>

#include "memory/communicator.h"
#include "plan/memory_plan.h"
#include "plan/program.h"

namespace ballast {

// Of the exchanges of a program: their names, groups and bytes, in order. Equal on all ranks, or
// they would wait for each other in vain.
std::uint64_t network_hash(const ProgramSet& set, int program);

// Of a program's instructions and the places of the buffers that they touch, whichever views of
// them. Equal on ranks that do the same work.
std::uint64_t plan_hash(const ProgramSet& set, const MemoryPlan& plan, int program);

// Compares the network hashes, and the plan hashes where a transport needs one plan, with the other
// ranks of every group, who call this at the same time. Fails with ErrorCode::input, on all of
// them, where a program differs. communicators: by ProgramSet::groups.
void check_ranks_agree(const ProgramSet& set, const MemoryPlan& plan,
                       std::span<Communicator* const> communicators);

}  // namespace ballast
