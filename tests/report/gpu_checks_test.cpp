#include "report/gpu_checks.h"

#include <gmock/gmock.h>

namespace ballast {
namespace {

using State = MachineCheck::State;
using ::testing::HasSubstr;

GpuFacts usable_gpu() {
  GpuFacts f;
  f.gpu.emplace();
  f.gpu->name = "NVIDIA H200";
  f.gpu->sm = 90;
  f.gpu->memory = 140_GiB;
  f.gpu->free = 139_GiB;
  f.gpu->driver = 13010;
  f.gpu->runtime = 13000;
  const auto library = [](std::string name, std::string file, std::string version) {
    return GpuLibrary{.name = std::move(name),
                      .file = file,
                      .path = "/opt/cuda/lib64/" + file,
                      .origin = "found by the system's loader",
                      .version = std::move(version),
                      .problem = ""};
  };
  f.libraries = {library("cuBLASLt", "libcublasLt.so.13", "13.1.0"),
                 library("cuDNN", "libcudnn.so.9", "9.19.0"),
                 library("NVRTC", "libnvrtc.so.13", "13.0")};
  return f;
}

MachineCheck find(const GpuFacts& facts, std::string_view name) {
  for (MachineCheck& c : check_gpu(facts)) {
    if (c.name == name) return c;
  }
  return {"missing", State::good, "", ""};
}

TEST(GpuChecks, AUsableGpuHasNothingToDo) {
  const auto checks = check_gpu(usable_gpu());
  EXPECT_EQ(checks.size(), 5u);
  for (const MachineCheck& c : checks) {
    EXPECT_EQ(c.state, State::good) << c.name;
    EXPECT_EQ(c.advice, "") << c.name;
  }
  EXPECT_THAT(find(usable_gpu(), "GPU device").finding,
              HasSubstr("NVIDIA H200, compute capability 9.0"));
  EXPECT_EQ(find(usable_gpu(), "CUDA").finding, "driver for CUDA 13.1, this build uses 13.0");
  EXPECT_EQ(find(usable_gpu(), "cuDNN").finding,
            "/opt/cuda/lib64/libcudnn.so.9, version 9.19.0, found by the system's loader");
}

TEST(GpuChecks, NoGpuIsOneFindingAndNoFault) {
  GpuFacts f;
  f.problem = "no NVIDIA driver is installed";
  f.advice = {{"--device cpu", "runs on the CPU"}};
  const auto checks = check_gpu(f);
  ASSERT_EQ(checks.size(), 1u);
  EXPECT_EQ(checks[0].state, State::good);
  EXPECT_EQ(checks[0].finding, "no GPU: no NVIDIA driver is installed; runs compute on the CPU");
}

TEST(GpuChecks, ADriverThatIsTooOldIsToBeReplaced) {
  GpuFacts f;
  f.problem = "the NVIDIA driver is made for CUDA 12.4, this build needs CUDA 13.0";
  f.advice = {{"a newer NVIDIA driver", "for CUDA 13.0"}};
  const MachineCheck c = find(f, "GPU device");
  EXPECT_EQ(c.state, State::warning);
  EXPECT_EQ(c.advice, "a newer NVIDIA driver: for CUDA 13.0");
}

TEST(GpuChecks, ALibraryThatIsMissingComesWithItsPackage) {
  GpuFacts f = usable_gpu();
  f.libraries[0].problem = "cannot open shared object file";
  f.libraries[1].problem = *cudnn_fault(91001);
  EXPECT_EQ(find(f, "cuBLASLt").state, State::warning);
  EXPECT_THAT(find(f, "cuBLASLt").advice, HasSubstr("apt install libcublas-13-0"));
  EXPECT_THAT(find(f, "cuDNN").finding, HasSubstr("9.10.1 computes attention gradients wrongly"));
  EXPECT_THAT(find(f, "cuDNN").advice, HasSubstr("libcudnn9-cuda-13"));
}

TEST(GpuChecks, EagerLoadingIsAWarning) {
  GpuFacts f = usable_gpu();
  f.loading = "LAZY";
  EXPECT_EQ(find(f, "CUDA module loading").name, "missing");
  f.loading = "eager";
  EXPECT_EQ(find(f, "CUDA module loading").state, State::warning);
}

TEST(GpuChecks, AFullCardIsNoted) {
  GpuFacts f = usable_gpu();
  f.gpu->free = 20_GiB;
  EXPECT_EQ(find(f, "GPU device").state, State::note);
  EXPECT_THAT(find(f, "GPU device").advice, HasSubstr("nvidia-smi"));
}

TEST(GpuChecks, LookingForAGpuNeverFails) {
  const GpuFacts f = find_gpu();
  EXPECT_EQ(f.gpu.has_value(), f.problem.empty());
  EXPECT_FALSE(check_gpu(f).empty());
}

}  // namespace
}  // namespace ballast
