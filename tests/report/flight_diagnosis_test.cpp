#include "report/flight_diagnosis.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "memory/budget.h"
#include "tests/memory/fake_root.h"

namespace ballast {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// A machine of 32 GiB where process 77, started 1000 ticks after boot, wrote the record.
class Crash : public testing::Test {
 protected:
  Crash() {
    record_.pid = 77;
    record_.start_ticks = 1000;
    record_.started = 1'700'000'000;
    record_.started_since_boot = 10;
    record_.boot_id = "boot-1";
    record_.host = "box";
    record_.start = {.command = "ballast train run.toml",
                     .folder = "/runs/one",
                     .total_steps = 100,
                     .planned = {.device = {}, .host = {}, .disk = {}, .ram = 8_GiB},
                     .allowed = {.device = {}, .host = {}, .disk = {}, .ram = 24_GiB}};
    record_.group = "/sys/fs/cgroup/user";
    record_.ram = 32_GiB;
    record_.group_oom_kills = 0;
    record_.system_oom_kills = 5;
    record_.state.phase = Phase::step;
    record_.state.step = 41;
    record_.state.most.ram = 7_GiB;
    record_.available = 20_GiB;
    record_.updated = now_ - 60;
    root_.file("proc/sys/kernel/random/boot_id", "boot-1\n");
    root_.file("proc/meminfo", "MemTotal: 33554432 kB\nMemAvailable: 20971520 kB\n");
    counters(0, 5);
  }
  void counters(int group, int system) {
    root_.file("sys/fs/cgroup/user/memory.events", fmt::format("oom 3\noom_kill {}\n", group));
    root_.file("proc/vmstat", fmt::format("nr_free 1\noom_kill {}\n", system));
  }
  FlightDiagnosis look() { return diagnose(record_, now_, root_.path()); }

  double now_ = 1'700'003'600;
  FlightRecord record_;
  FakeRoot root_;
};

TEST_F(Crash, ProcessThatLivesIsStillRunning) {
  root_.file("proc/77/stat", "77 (ballast (x) y) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 9 0 1000 7 7");
  const FlightDiagnosis d = look();
  EXPECT_EQ(d.outcome, Outcome::running);
  EXPECT_THAT(d.headline, HasSubstr("step 42 of 100"));
  EXPECT_THAT(d.advice, IsEmpty());
}

TEST_F(Crash, AnotherProcessWithThatNumberIsNotTheRun) {
  root_.file("proc/77/stat", "77 (bash) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 9 0 2000 7 7");
  EXPECT_EQ(look().outcome, Outcome::died);
}

TEST_F(Crash, DeadProcessNobodyWaitedForIsDead) {
  root_.file("proc/77/stat", "77 (ballast) Z 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 9 0 1000 7 7");
  EXPECT_EQ(look().outcome, Outcome::died);
}

TEST_F(Crash, HeldLockMeansRunningEvenWhereTheProcessCannotBeSeen) {
  record_.locked = true;
  EXPECT_EQ(look().outcome, Outcome::running);
}

TEST_F(Crash, CountersThatDidNotMoveRuleOutTheOomKiller) {
  const FlightDiagnosis d = look();
  EXPECT_EQ(d.outcome, Outcome::died);
  EXPECT_EQ(d.out_of_memory, OutOfMemory::no);
  EXPECT_THAT(d.headline, AllOf(HasSubstr("step 42 of 100"),
                                HasSubstr(": the process was killed (SIGKILL or crash). "
                                          "Memory was not the cause.")));
  ASSERT_EQ(d.advice.size(), 1u);
  EXPECT_EQ(d.advice[0].change, "ballast train run.toml --resume");
}

TEST_F(Crash, KillInItsControlGroupIsTheLikelyCause) {
  counters(1, 6);
  record_.group_limit = 8_GiB;
  const FlightDiagnosis d = look();
  EXPECT_EQ(d.out_of_memory, OutOfMemory::likely);
  EXPECT_THAT(d.findings, Contains(HasSubstr("ended 1 process of its control group")));
}

TEST_F(Crash, VersionOneGroupsCountInAnotherFile) {
  std::filesystem::remove(root_.path() / "sys/fs/cgroup/user/memory.events");
  root_.file("sys/fs/cgroup/user/memory.oom_control",
             "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n");
  const FlightDiagnosis d = look();
  EXPECT_EQ(d.out_of_memory, OutOfMemory::likely);
  EXPECT_THAT(d.findings, Contains(HasSubstr("ended 2 processes of its control group")));
}

TEST_F(Crash, KillElsewhereIsOnlyPossibleUnlessMemoryWasShort) {
  counters(0, 6);
  EXPECT_EQ(look().out_of_memory, OutOfMemory::possible);
  record_.available = 100_MiB;
  EXPECT_EQ(look().out_of_memory, OutOfMemory::likely);
}

TEST_F(Crash, CounterOfANewGroupThatIsSmallerProvesNothing) {
  record_.group_oom_kills = 9;
  EXPECT_EQ(look().out_of_memory, OutOfMemory::no);
}

TEST_F(Crash, KernelLogThatNamesTheProcessIsCertain) {
  const std::string old =
      "3,10,9000000,-;Out of memory: Killed process 77 (ballast) total-vm:1kB\n";
  const std::string other = "3,11,20000000,-;Out of memory: Killed process 770 (x) total-vm:1kB\n";
  root_.file("dev/kmsg", old + other);
  EXPECT_EQ(look().out_of_memory, OutOfMemory::no);
  root_.file("dev/kmsg", old + other +
                             "3,12,20000001,-;Memory cgroup out of memory: Killed process 77 "
                             "(ballast) anon-rss:8388608kB\n SUBSYSTEM=x\n");
  const FlightDiagnosis d = look();
  EXPECT_EQ(d.out_of_memory, OutOfMemory::certain);
  EXPECT_THAT(d.headline, HasSubstr("killed by the kernel: out of memory"));
  EXPECT_THAT(d.findings, Contains(HasSubstr("anon-rss:8388608kB")));
}

TEST_F(Crash, RestartedMachineKnowsNothing) {
  root_.file("proc/sys/kernel/random/boot_id", "boot-2\n");
  root_.file("proc/77/stat", "77 (ballast) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 9 0 1000 7 7");
  counters(9, 99);
  const FlightDiagnosis d = look();
  EXPECT_EQ(d.outcome, Outcome::died);
  EXPECT_EQ(d.out_of_memory, OutOfMemory::unknown);
  EXPECT_THAT(d.findings, Contains(HasSubstr("restart")));
}

TEST_F(Crash, ShortMemoryWithoutATraceIsPossible) {
  record_.state.most.ram = 31_GiB;
  const FlightDiagnosis d = look();
  EXPECT_EQ(d.out_of_memory, OutOfMemory::possible);
  EXPECT_THAT(d.findings, Contains(HasSubstr("earlyoom")));
}

TEST_F(Crash, AdvisesABudgetThatThisMachineHas) {
  counters(1, 6);
  const FlightDiagnosis d = look();
  // 20 GiB are available, 5 % of it stays in reserve: 19 GiB instead of the 24 allowed.
  EXPECT_THAT(d.advice, Contains(testing::Field(&Advice::change, "[memory] ram = \"19456MiB\"")));
  for (const Advice& a : d.advice) EXPECT_THAT(a.change + a.effect, Not(HasSubstr("swap")));
}

TEST_F(Crash, MoreThanPlannedIsCalledABug) {
  record_.state.most.ram = 9_GiB;
  const FlightDiagnosis d = look();
  EXPECT_THAT(d.advice.at(0).effect, HasSubstr("1.074 GB more than its plan of 8.590 GB"));
}

TEST_F(Crash, EndsAreToldAsTheyWere) {
  record_.state.phase = Phase::finished;
  record_.state.step = 100;
  EXPECT_EQ(look().outcome, Outcome::finished);
  EXPECT_THAT(look().headline, HasSubstr("finished normally after step 100, 1 min 00 s ago"));
  EXPECT_THAT(look().advice, IsEmpty());
  record_.state.phase = Phase::stopped;
  EXPECT_EQ(look().outcome, Outcome::stopped);
  record_.state.phase = Phase::failed;
  record_.note = "disk full\x1b[2J";
  EXPECT_EQ(look().outcome, Outcome::failed);
  EXPECT_THAT(look().findings, Contains("disk full\\x1b[2J"));
}

TEST_F(Crash, DescriptionHasTheNumbersAndTheAdvice) {
  counters(1, 6);
  record_.state.loss = 0.0812;
  const std::string text = describe(record_, look());
  EXPECT_THAT(text, HasSubstr("last run: step 42 of 100"));
  EXPECT_THAT(text, HasSubstr("loss 0.0812"));
  EXPECT_THAT(text, HasSubstr("what would help:\n  1. "));
  EXPECT_THAT(text, HasSubstr("ballast train run.toml --resume"));
}

}  // namespace
}  // namespace ballast
