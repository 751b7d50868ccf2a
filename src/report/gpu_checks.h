#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/error.h"
#include "memory/gpu.h"
#include "memory/gpu_libraries.h"
#include "report/machine_checks.h"

namespace ballast {

// What there is to compute with beside the processors.
struct GpuFacts {
  std::optional<GpuInfo> gpu;          // nullopt: it cannot be used
  std::string problem;                 // why not
  std::vector<Advice> advice;          // what to do then
  std::vector<GpuLibrary> libraries;   // looked for where there is a GPU
  std::optional<std::string> loading;  // CUDA_MODULE_LOADING
};

// Opens the GPU, where this build can; never fails.
GpuFacts find_gpu();

// One finding per thing that a run on the GPU depends on; a single one where there is no GPU.
std::vector<MachineCheck> check_gpu(const GpuFacts& facts);

}  // namespace ballast
