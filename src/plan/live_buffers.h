#pragma once

#include <cstdint>
#include <string>

#include "plan/memory_plan.h"
#include "plan/program.h"

namespace ballast {

// Who holds memory while an instruction runs, for a failure's last words: "holding 1.2 GB on the
// device (weights 0.8 GB, activation 0.4 GB; largest blocks.3.ffn.h 120 MB) and 3 MB in host
// memory (...)". By the plan, which is what is held.
std::string describe_live_buffers(const ProgramSet& set, const MemoryPlan& plan, int program,
                                  std::uint32_t instruction);

}  // namespace ballast
