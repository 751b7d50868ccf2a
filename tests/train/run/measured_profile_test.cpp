#include "train/run/measured_profile.h"

#include <gtest/gtest.h>

#include <fstream>

#include "tests/support/temp_dir.h"

namespace ballast::train {
namespace {

MachineProfile measured() {
  return {.name = "NVIDIA Test",
          .description = "a card",
          .device = Device::cuda,
          .gemm_flops = 6.5e14,
          .attention_flops = 5.5e14,
          .attention_backward_flops = 4.5e14,
          .memory_bandwidth = 4.2e12,
          .upload_bandwidth = 5.5e10,
          .download_bandwidth = 5.4e10,
          .disk_bandwidth = 3.4e9,
          .launch_seconds = 4e-6,
          .device_memory = {},
          .library_bytes = {},
          .estimate = false};
}

TEST(MeasuredProfile, IsReadBackAsItWasMeasured) {
  const test::TempDir dir;
  const std::filesystem::path path = std::filesystem::path(dir.path()) / "deep" / "machine.json";
  save_profile(measured(), path);
  const auto p = load_profile("NVIDIA Test", path);
  ASSERT_TRUE(p);
  EXPECT_EQ(p->device, Device::cuda);
  EXPECT_EQ(p->description, "a card");
  EXPECT_FALSE(p->estimate);
  EXPECT_DOUBLE_EQ(p->gemm_flops, 6.5e14);
  EXPECT_DOUBLE_EQ(p->download_bandwidth, 5.4e10);
  EXPECT_DOUBLE_EQ(p->launch_seconds, 4e-6);
  EXPECT_EQ(p->fp8_gemm_flops, 0);  // a card without it has the other rates nevertheless
  MachineProfile fp8 = measured();
  fp8.fp8_gemm_flops = 1.2e15;
  fp8.product_step_seconds = 3e-9;
  save_profile(fp8, path);
  EXPECT_DOUBLE_EQ(load_profile("NVIDIA Test", path)->product_step_seconds, 3e-9);
  EXPECT_DOUBLE_EQ(load_profile("NVIDIA Test", path)->fp8_gemm_flops, 1.2e15);
}

TEST(MeasuredProfile, OfAnotherCardIsNotTaken) {
  const test::TempDir dir;
  const std::filesystem::path path = std::filesystem::path(dir.path()) / "machine.json";
  save_profile(measured(), path);
  EXPECT_FALSE(load_profile("NVIDIA Other", path));
}

TEST(MeasuredProfile, ThatIsMissingBrokenOrIncompleteIsNone) {
  const test::TempDir dir;
  const std::filesystem::path path = std::filesystem::path(dir.path()) / "machine.json";
  EXPECT_FALSE(load_profile("this", path));
  for (const char* text :
       {"", "{", "[]", "{\"name\": 3}", "{\"name\": \"this\", \"device\": \"cpu\"}",
        "{\"name\": \"this\", \"gemm_flops\": \"fast\"}"}) {
    std::ofstream(path) << text;
    EXPECT_FALSE(load_profile("this", path)) << text;
  }
  std::ofstream(path) << std::string(1 << 20, ' ');
  EXPECT_FALSE(load_profile("this", path));
}

TEST(MeasuredProfile, WithOneRateManyTimesIsIncomplete) {
  const test::TempDir dir;
  const std::filesystem::path path = std::filesystem::path(dir.path()) / "machine.json";
  std::string text = "{\"name\": \"this\"";
  for (int i = 0; i < 8; ++i) text += ", \"gemm_flops\": 1e12";
  std::ofstream(path) << text << "}";
  EXPECT_FALSE(load_profile("this", path));  // the bandwidths would be 0
}

TEST(MeasuredProfile, TakesTheLastOfARateAndNoneBelowZero) {
  const test::TempDir dir;
  const std::filesystem::path path = std::filesystem::path(dir.path()) / "machine.json";
  save_profile(measured(), path);
  const std::string whole = test::read_whole(path.string());
  const auto with = [&](const std::string& more) {
    std::ofstream(path) << whole.substr(0, whole.rfind('}')) << more << "}";
    return load_profile("NVIDIA Test", path);
  };
  EXPECT_DOUBLE_EQ(with(", \"gemm_flops\": 5")->gemm_flops, 5);
  EXPECT_FALSE(with(", \"gemm_flops\": -5"));
  EXPECT_EQ(with(", \"fp8_gemm_flops\": -5")->fp8_gemm_flops, 0);
}

TEST(MeasuredProfile, GivesItsRatesAndNothingElse) {
  const test::TempDir dir;
  const char* const before = std::getenv("XDG_CACHE_HOME");
  const std::string old = before ? before : "";
  setenv("XDG_CACHE_HOME", std::string(dir.path()).c_str(), 1);
  MachineProfile known = measured();
  known.name = "this";
  known.gemm_flops = 1;
  known.sm = 89;
  known.device_memory = Bytes{123};
  known.library_bytes = Bytes{456};
  known.estimate = true;
  EXPECT_TRUE(with_measured_rates(known, "NVIDIA Test").estimate);  // nothing was measured yet
  save_profile(measured(), profile_path(Device::cuda));
  const MachineProfile p = with_measured_rates(known, "NVIDIA Test");
  EXPECT_FALSE(p.estimate);
  EXPECT_DOUBLE_EQ(p.gemm_flops, 6.5e14);
  EXPECT_EQ(p.name, "this");
  EXPECT_EQ(p.sm, 89);
  EXPECT_EQ(p.device_memory.count, 123u);
  EXPECT_EQ(p.library_bytes.count, 456u);
  if (before) {
    setenv("XDG_CACHE_HOME", old.c_str(), 1);
  } else {
    unsetenv("XDG_CACHE_HOME");
  }
}

}  // namespace
}  // namespace ballast::train
