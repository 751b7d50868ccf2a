#pragma once

#include <array>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "fit/fit.h"
#include "memory/gpu.h"
#include "plan/runner.h"

namespace ballast {

// What a run planned and used of memory.
struct MemoryUse {
  struct Arena {
    Bytes planned, used;
  };
  std::array<Arena, kTiers.size()> arenas;  // by tier
  Bytes device_planned, host_planned;       // by the process, arenas included
  std::string gpu;                          // its name; "": none
  Bytes gpu_used, gpu_context, host_used;

  void add_to(nlohmann::ordered_json& j) const;
  std::string text() const;  // two lines
};

// Until now. gpu: nullptr on the CPU.
MemoryUse memory_use(const fit::PlannedRun& planned, const MemoryPlan& plan, const Runner& runner,
                     const GpuInfo* gpu);

// The fastest plan; fails with ErrorCode::refused where none fits.
fit::PlannedRun fitting_plan(const fit::Request& request);

}  // namespace ballast
