#pragma once

#include <dlfcn.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "memory/gpu.h"
#include "tests/support/temp_dir.h"

// cuDNN says what it can compute on a GPU, and with how much memory, where that GPU is not: given
// its properties.
namespace ballast::support {

struct Gpu {
  const char* name;
  int sm, multiprocessors, shared_memory, blocks, threads;
};
inline void PrintTo(const Gpu& gpu, std::ostream* to) { *to << gpu.name; }

inline std::string properties(const Gpu& gpu) {
  return fmt::format(
      R"({{"maxGridSize": [2147483647, 65535, 65535], "maxBlockSize": [1024, 1024, 64],
"regsPerBlock": 65536, "multiProcessorCount": {}, "warpSize": 32, "maxSharedMemoryPerBlock": 49152,
"maxSharedMemoryPerBlockOptin": {}, "reservedSharedMemoryPerBlock": 1024, "maxRegistersPerSM": 65536,
"maxCtasPerSM": {}, "maxThreadsPerBlock": 1024, "maxThreadsPerSM": {}, "pciDeviceId": 6,
"isTccDriver": 0, "supportCoopLaunch": 1, "totalGlobalMem": 25757220864, "smClockRateKHz": 1980000,
"memClockRateKHz": 3201000, "l2CacheSize": 62914560, "cudaDeviceId": 0, "deviceVer": {},
"driverVer": 13000, "deviceName": "{}"}})",
      gpu.multiprocessors, gpu.shared_memory, gpu.blocks, gpu.threads, 10 * gpu.sm, gpu.name);
}

// cuDNN insists on a driver's library; the toolkit has one without a driver. Empty when there is
// one now, else what is missing.
inline std::string find_driver_library() {
  if (dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL)) return "";
  const std::string missing = dlerror();
  const test::TempDir folder;  // once loaded, it is found by the name it has inside
  const std::string link = folder.path("libcuda.so.1");
  std::filesystem::create_symlink(BALLAST_CUDA_STUB, link);
  if (dlopen(link.c_str(), RTLD_NOW | RTLD_GLOBAL)) return "";
  return missing + "; " + dlerror();
}

class CudnnWithoutGpu : public testing::TestWithParam<Gpu> {
 protected:
  void SetUp() override {
    if (!built_with_cuda()) GTEST_SKIP() << "this build has no CUDA";
    if (!dlopen("libcudnn.so.9", RTLD_NOW)) GTEST_SKIP() << dlerror();
    static const std::string missing = find_driver_library();
    if (!missing.empty()) GTEST_SKIP() << missing;
  }
};

inline const std::vector<Gpu> kGpus = {{"A100", 80, 108, 166912, 32, 2048},
                                       {"RTX3090", 86, 82, 101376, 16, 1536},
                                       {"RTX4090", 89, 128, 101376, 24, 1536},
                                       {"H200", 90, 132, 232448, 32, 2048},
                                       {"RTX5090", 120, 170, 101376, 24, 1536}};

}  // namespace ballast::support
