#include "memory/budget.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/error.h"

namespace ballast {
namespace {

using testing::ElementsAre;
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

TEST(Budget, FieldsAreTheOnlyListOfNames) {
  const Budget b{.gpu = 1_GiB, .host = 2_GiB, .disk = 3_GiB};
  std::vector<std::string> names;
  std::vector<Bytes> values;
  Budget::fields(b, [&](const char* name, const Bytes& value, const char*) {
    names.emplace_back(name);
    values.push_back(value);
  });
  EXPECT_THAT(names, ElementsAre("gpu", "ram", "disk"));
  EXPECT_THAT(values, ElementsAre(1_GiB, 2_GiB, 3_GiB));
}

TEST(Budget, FieldsAreSetFromText) {
  Budget b;
  set_field(b, "gpu", "24GiB");
  set_field(b, "ram", "32GB");
  set_field(b, "disk", "0");
  EXPECT_EQ(b, (Budget{.gpu = 24_GiB, .host = 32_GB, .disk = {}}));
}

TEST(Budget, BadTextsAreUsageErrorsThatNameTheField) {
  const auto message = [](const char* field, const char* text) -> std::string {
    Budget b;
    try {
      set_field(b, field, text);
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::usage);
      EXPECT_FALSE(e.advice().empty());
      return e.what();
    }
    return "no error";
  };
  EXPECT_THAT(message("ram", "lots"), HasSubstr("ram is \"lots\""));
  EXPECT_THAT(message("gpu", "-1GB"), HasSubstr("gpu is"));
  EXPECT_THAT(message("vram", "1GB"), HasSubstr("no field \"vram\""));
}

TEST(Budget, ANumberWithoutAUnitIsAskedAbout) {
  for (const char* field : {"gpu", "ram", "disk"}) {
    Budget b;
    try {
      set_field(b, field, "24");
      FAIL() << field;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::usage);
      EXPECT_THAT(e.what(),
                  HasSubstr(std::string("--") + field + ": 24 means 24 bytes; did you mean 24GB?"));
    }
    set_field(b, field, "24B");
    set_field(b, field, "1000000");
    set_field(b, field, "0");
  }
}

TEST(Budget, OnTheCpuRamAloneBoundsEverything) {
  const Machine machine = machine_with(10_GiB);
  const auto resolved = [&](const BudgetFlags& flags, Device device) {
    return resolve_budget(machine, flags, device, 24_GiB);
  };
  const Bytes free = 10_GiB - 512_MiB;
  EXPECT_EQ(resolved({.gpu = "", .ram = ""}, Device::cpu),
            (Budget{.gpu = free, .host = free, .disk = {}}));
  EXPECT_EQ(resolved({.gpu = "", .ram = "2GiB"}, Device::cpu),
            (Budget{.gpu = 2_GiB, .host = 2_GiB, .disk = {}}));
  EXPECT_EQ(resolved({.gpu = "", .ram = "20GiB"}, Device::cpu).gpu, 20_GiB);
  EXPECT_EQ(resolved({.gpu = "1GiB", .ram = "2GiB", .disk = "3GiB"}, Device::cpu),
            (Budget{.gpu = 1_GiB, .host = 2_GiB, .disk = 3_GiB}));
  EXPECT_EQ(resolved({.gpu = "", .ram = "2GiB"}, Device::cuda),
            (Budget{.gpu = 24_GiB, .host = 2_GiB, .disk = {}}));
  EXPECT_EQ(resolved({.gpu = "8GiB", .ram = ""}, Device::cuda),
            (Budget{.gpu = 8_GiB, .host = free, .disk = {}}));
}

}  // namespace
}  // namespace ballast
