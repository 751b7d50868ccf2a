#pragma once

#include "memory/budget.h"
#include "memory/gpu.h"
#include "memory/machine.h"
#include "nn/machine_options.h"
#include "plan/profile.h"

namespace ballast::train {

// The machine that is planned for.
struct RunTarget {
  MachineProfile profile;
  Backend backend;
  int host_threads = 1;  // for what the processors compute beside a GPU, where they do
  int ranks = 1;         // that share RAM and disk
};

// This machine: its GPU, which is opened then, or its processors. `automatic` takes the GPU where
// this build and the machine have a usable one; `cuda` fails (ErrorCode::device) where they do not,
// with what is missing.
RunTarget this_machine(const MachineOptions& options);

// The first of these for a GPU that is known: its rates are measured ones (measured_profile.h) or
// estimates of the nearest bundled profile, its memory what is free now, less a reserve.
RunTarget gpu_target(const GpuInfo& gpu, const MachineOptions& options);

// What is declared, inside the limits of this machine where that is the target (ignore_limits: as
// declared); see memory/budget.h. Of RAM and disk each rank has an equal share, and of a CPU's
// compute share too where none is declared.
Budget resolve_budget(const RunTarget& target, const MachineOptions& options,
                      const Machine& machine = read_machine());

// Another machine, by its profile.
RunTarget target_of(const MachineProfile& profile, const MachineOptions& options);

}  // namespace ballast::train
