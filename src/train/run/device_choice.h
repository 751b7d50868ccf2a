#pragma once

#include "memory/budget.h"
#include "memory/gpu.h"
#include "plan/profile.h"
#include "train/config/config.h"

namespace ballast::train {

// The machine that is planned for.
struct RunTarget {
  MachineProfile profile;
  Backend backend;
  int host_threads = 1;  // for what the processors compute beside a GPU, where they do
};

// What a run wants to compute with.
struct ComputeOptions {
  DeviceChoice device = DeviceChoice::automatic;
  bool deterministic = true;  // GPU only
  int threads = 0;            // of the CPU backend, 0: all that the process may use
  VerifyWeights verify_weights = VerifyWeights::sampled;
};
ComputeOptions compute_options(const MemoryConfig& memory, int threads);

// This machine: its GPU, which is opened then, or its processors. `automatic` takes the GPU where
// this build and the machine have a usable one; `cuda` fails (ErrorCode::device) where they do not,
// with what is missing.
RunTarget this_machine(const ComputeOptions& options);

// The first of these for a GPU that is known: its rates are measured ones (measured_profile.h) or
// estimates of the nearest bundled profile, its memory what is free now, less a reserve.
RunTarget gpu_target(const GpuInfo& gpu, const ComputeOptions& options);

// What is declared, inside the limits of this machine where that is the target; see
// resolve_budget(). ignore_limits: as declared.
Budget budget_on(const RunTarget& target, const DeclaredBudget& declared, bool ignore_limits);

// Another machine, by its profile.
RunTarget target_of(const MachineProfile& profile, const ComputeOptions& options);

}  // namespace ballast::train
