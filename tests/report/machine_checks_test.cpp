#include "report/machine_checks.h"

#include <gmock/gmock.h>

#include "tests/memory/fake_root.h"

namespace ballast {
namespace {

using State = MachineCheck::State;
using ::testing::HasSubstr;
using ::testing::Not;

class MachineChecks : public testing::Test {
 protected:
  MachineChecks() {
    machine_.ram = 32_GiB;
    machine_.ram_available = 30_GiB;
    machine_.locked = kUnlimited;
    root_.file("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
  }
  MachineCheck find(std::string_view name, const std::optional<DiskSpeed>& disk = {}) {
    for (MachineCheck& c : check_machine(machine_, ".", disk, root_.path())) {
      if (c.name == name) return c;
    }
    return {"missing", State::good, "", ""};
  }

  Machine machine_;
  FakeRoot root_;
};

TEST_F(MachineChecks, HealthyMachineHasNothingToDo) {
  for (const char* name : {"RAM", "control group", "swap", "locked memory", "huge pages", "GPU"}) {
    const MachineCheck c = find(name);
    EXPECT_EQ(c.state, State::good) << name << c.finding;
    EXPECT_EQ(c.advice, "") << name;
  }
}

TEST_F(MachineChecks, NobodyIsToldToAddSwap) {
  machine_.ram_available = 100_MiB;
  machine_.swap = 0_GiB;
  EXPECT_EQ(find("RAM").state, State::warning);
  for (const MachineCheck& c : check_machine(machine_, ".", std::nullopt, root_.path())) {
    EXPECT_THAT(c.advice, Not(HasSubstr("add swap")));
  }
}

TEST_F(MachineChecks, SwapInUseIsAWarning) {
  machine_.swap = 8_GiB;
  machine_.swap_free = 1_GiB;
  EXPECT_EQ(find("swap").state, State::warning);
}

TEST_F(MachineChecks, ContainerLimitIsTold) {
  machine_.cgroup.memory = 8_GiB;
  machine_.cgroup.memory_left = 5_GiB;
  const MachineCheck c = find("control group");
  EXPECT_THAT(c.finding, HasSubstr("limit 8.590 GB, 5.369 GB left"));
  EXPECT_THAT(c.advice, HasSubstr("docker --memory"));
}

TEST_F(MachineChecks, SlowDiskIsAWarningWithItsPrice) {
  DiskSpeed slow;
  slow.direct = true;
  slow.read = 143e6;
  EXPECT_EQ(find("disk speed", slow).state, State::warning);
  EXPECT_THAT(find("disk speed", slow).advice, HasSubstr("100 s per pass"));
  slow.read = 3e9;
  EXPECT_EQ(find("disk speed", slow).state, State::good);
  slow.direct = false;
  EXPECT_EQ(find("disk speed", slow).state, State::note);
  slow.problem = "read-only";
  EXPECT_THAT(find("disk speed", slow).finding, HasSubstr("not measured: read-only"));
}

TEST_F(MachineChecks, HalfADriverIsNamed) {
  root_.file("proc/driver/nvidia/version",
             "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.14\nGCC version: 12\n");
  EXPECT_THAT(find("GPU").advice, HasSubstr("--gpus all"));
  root_.file("dev/nvidiactl", "");
  EXPECT_EQ(find("GPU").state, State::good);
  EXPECT_THAT(find("GPU").finding, HasSubstr("550.54.14"));
  std::filesystem::remove(root_.path() / "proc/driver/nvidia/version");
  EXPECT_THAT(find("GPU").advice, HasSubstr("modprobe nvidia"));
}

}  // namespace
}  // namespace ballast
