#include "memory/budget.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <memory>
#include <string>

#include "core/error.h"
#include "core/log.h"

namespace ballast {
namespace {

using testing::HasSubstr;

Machine machine_with(Bytes available) {
  Machine m;
  m.ram_available = available;
  return m;
}

TEST(Budget, ReservesFivePercentButAtLeastHalfAGibibyte) {
  EXPECT_EQ(default_budget(machine_with(100_GiB)).host, 95_GiB);
  EXPECT_EQ(default_budget(machine_with(10_GiB)).host, 10_GiB - 512_MiB);
  EXPECT_EQ(default_budget(machine_with(8_GiB)).host, 8_GiB - 512_MiB);
  EXPECT_EQ(default_budget(machine_with(512_MiB)).host, Bytes{0});
  EXPECT_EQ(default_budget(machine_with(100_MiB)).host, Bytes{0});
}

TEST(Budget, OfAGpuReservesOnePercentButAtLeastAQuarterOfAGibibyte) {
  EXPECT_EQ(default_gpu_budget(100_GiB, {}), 99_GiB);
  EXPECT_EQ(default_gpu_budget(24_GiB, {}), 24_GiB - 256_MiB);
  EXPECT_EQ(default_gpu_budget(100_MiB, {}), Bytes{0});
  // The context is there already when free memory is asked for.
  EXPECT_EQ(default_gpu_budget(24_GiB, 512_MiB), 24_GiB + 256_MiB);
}

TEST(Budget, KeepsInsideTheControlGroup) {
  Machine m = machine_with(100_GiB);
  m.cgroup.memory_left = 20_GiB;
  const Budget b = default_budget(m);
  EXPECT_EQ(b.host, 19_GiB);
  EXPECT_EQ(b.gpu, b.host);
  EXPECT_EQ(b.disk, Bytes{0});
}

TEST(Budget, AsksForANumberWhenTheMachineGivesNone) {
  try {
    default_budget(Machine{});
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::input);
    ASSERT_EQ(e.advice().size(), 1u);
    EXPECT_THAT(e.advice()[0].change, HasSubstr("--ram"));
  }
}

TEST(Budget, OnTheCpuRamAloneBoundsEverything) {
  const Machine machine = machine_with(10_GiB);
  const auto resolved = [&](const DeclaredBudget& declared, Device device) {
    return resolve_budget(machine, declared, {.device = device, .gpu_memory = 24_GiB});
  };
  const Bytes free = 10_GiB - 512_MiB;
  EXPECT_EQ(resolved({}, Device::cpu), (Budget{.gpu = free, .host = free, .disk = {}}));
  EXPECT_EQ(resolved({.gpu = {}, .ram = 2_GiB, .disk = {}}, Device::cpu),
            (Budget{.gpu = 2_GiB, .host = 2_GiB, .disk = {}}));
  EXPECT_EQ(resolved({.gpu = 1_GiB, .ram = 2_GiB, .disk = 3_GiB}, Device::cpu),
            (Budget{.gpu = 1_GiB, .host = 2_GiB, .disk = 3_GiB}));
  EXPECT_EQ(resolved({.gpu = {}, .ram = 2_GiB, .disk = {}}, Device::cuda),
            (Budget{.gpu = 24_GiB, .host = 2_GiB, .disk = {}}));
  EXPECT_EQ(resolved({.gpu = 8_GiB, .ram = {}, .disk = {}}, Device::cuda),
            (Budget{.gpu = 8_GiB, .host = free, .disk = {}}));
}

// 100 GiB are free, a group of 16 GiB is shared with processes that have 4 GiB of it.
Machine machine_in_group() {
  Machine m = machine_with(100_GiB);
  m.ram = 128_GiB;
  m.own_memory = 1_GiB;
  m.cgroup.groups = {{"/sys/fs/cgroup/job/step/memory.max", 32_GiB, 30_GiB},
                     {"/sys/fs/cgroup/job/memory.max", 16_GiB, 10_GiB}};
  m.cgroup.memory = 16_GiB;
  m.cgroup.memory_left = 10_GiB;
  return m;
}

TEST(Budget, IsNeverAboveTheLimitsOfTheSystem) {
  const Machine m = machine_in_group();
  const Budget b = resolve_budget(m, {.gpu = {}, .ram = 64_GiB, .disk = {}}, {});
  EXPECT_EQ(b.host, 12_GiB);  // what is left and a tenth of it, and what this process has
  EXPECT_EQ(b.gpu, b.host);
  ASSERT_TRUE(b.ram_limit.has_value());
  EXPECT_EQ(b.ram_limit->name, "/sys/fs/cgroup/job/memory.max");
  EXPECT_EQ(b.ram_limit->limit, 16_GiB);
  // What fits is as declared.
  EXPECT_EQ(resolve_budget(m, {.gpu = {}, .ram = 8_GiB, .disk = {}}, {}).host, 8_GiB);
}

TEST(Budget, AGroupOfItsSizeHoldsIt) {
  Machine m = machine_in_group();
  m.own_memory = Bytes{900'000};
  m.cgroup.groups = {{"/g/memory.max", Bytes{50'000'000}, Bytes{47'000'000}}};
  EXPECT_EQ(resolve_budget(m, {.gpu = {}, .ram = Bytes{50'000'000}, .disk = {}}, {}).host,
            Bytes{50'000'000});
}

// What the log says of 50 MB that are declared in a group of that size.
std::string told_of(const char* group, Bytes left) {
  Machine m = machine_in_group();
  m.own_memory = Bytes{900'000};
  m.cgroup.groups = {{group, Bytes{50'000'000}, left}};
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::tmpfile(), &std::fclose);
  log::set_file(file.get());
  const Budget b = resolve_budget(m, {.gpu = {}, .ram = Bytes{50'000'000}, .disk = {}}, {});
  log::set_file(stderr);
  EXPECT_LT(b.host, Bytes{50'000'000});
  std::rewind(file.get());
  std::string text(200, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), file.get()));
  return text;
}

TEST(Budget, ALimitWarnsWhereItTakesMoreThanAHundredth) {
  EXPECT_EQ(told_of("/nearly/memory.max", Bytes{44'500'000}), "");
  EXPECT_THAT(told_of("/less/memory.max", Bytes{40'000'000}), HasSubstr("planned within that"));
}

TEST(Budget, IgnoredLimitsAndThoseOfAnotherMachineDoNotCount) {
  for (const Limits limits : {Limits::ignored, Limits::foreign}) {
    const Budget b = resolve_budget(
        machine_in_group(), {.gpu = 80_GiB, .ram = 64_GiB, .disk = {}},
        {.device = Device::cuda, .gpu_memory = 24_GiB, .threads = 1, .limits = limits});
    EXPECT_EQ(b.host, 64_GiB);
    EXPECT_EQ(b.gpu, 80_GiB);
    EXPECT_FALSE(b.ram_limit || b.gpu_limit);
  }
}

TEST(Budget, IsNeverAboveWhatTheGpuHas) {
  const Budget b = resolve_budget(machine_in_group(), {.gpu = 80_GiB, .ram = {}, .disk = {}},
                                  {.device = Device::cuda, .gpu_memory = 24_GiB});
  EXPECT_EQ(b.gpu, 24_GiB);
  ASSERT_TRUE(b.gpu_limit.has_value());
  EXPECT_EQ(b.gpu_limit->kind, MemoryLimit::Kind::gpu);
}

TEST(Budget, RamThatIsDeclaredIsEnoughWhereTheMachineSaysNothing) {
  EXPECT_EQ(resolve_budget({}, {.gpu = {}, .ram = 3_GiB, .disk = {}}, {}).host, 3_GiB);
}

}  // namespace
}  // namespace ballast
