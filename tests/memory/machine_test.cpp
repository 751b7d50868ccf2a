#include "memory/machine.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <thread>

#include "tests/memory/fake_root.h"

namespace ballast {
namespace {

TEST(Machine, ReadsEveryNumber) {
  FakeRoot root;
  root.file(
          "proc/meminfo",
          "MemTotal:       24643328 kB\nMemFree:        24505200 kB\nMemAvailable:   24452068 kB\n"
          "SwapTotal:       1048576 kB\nSwapFree:         524288 kB\nHugepagesize:       2048 kB\n")
      .file("proc/self/limits",
            "Limit                     Soft Limit           Hard Limit           Units\n"
            "Max locked memory         8388608              unlimited            bytes\n")
      .file("proc/self/status", "Name:\tx\nCpus_allowed:\tff\nCpus_allowed_list:\t0-3,8,10-11\n")
      .file("sys/devices/system/node/online", "0-1\n")
      .file("sys/kernel/mm/transparent_hugepage/hpage_pmd_size", "33554432\n");
  const Machine m = read_machine(root.path());
  EXPECT_EQ(m.ram, Bytes{24643328ull << 10});
  EXPECT_EQ(m.ram_available, Bytes{24452068ull << 10});
  EXPECT_EQ(m.swap, 1_GiB);
  EXPECT_EQ(m.swap_free, 512_MiB);
  EXPECT_EQ(m.locked, 8_MiB);
  EXPECT_EQ(m.affinity, 7);
  EXPECT_EQ(m.numa_nodes, 2);
  EXPECT_EQ(m.huge_page, 32_MiB);
  EXPECT_EQ(m.page.count, static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE)));
  EXPECT_EQ(m.cgroup.memory, std::nullopt);
}

TEST(Machine, FallsBackToTheHugePagePool) {
  FakeRoot root;
  root.file("proc/meminfo", "Hugepagesize:       2048 kB\n");
  EXPECT_EQ(read_machine(root.path()).huge_page, 2_MiB);
}

TEST(Machine, UnlimitedLockedMemoryIsNotUnknown) {
  FakeRoot root;
  root.file("proc/self/limits",
            "Max locked memory         unlimited            unlimited     bytes\n");
  EXPECT_EQ(read_machine(root.path()).locked, kUnlimited);
}

TEST(Machine, AnEmptyRootHasNoNumbers) {
  const FakeRoot root;
  const Machine m = read_machine(root.path());
  for (const auto& field : {m.ram, m.ram_available, m.swap, m.swap_free, m.locked, m.huge_page,
                            m.cgroup.memory, m.cgroup.memory_left, available_memory(m)}) {
    EXPECT_EQ(field, std::nullopt);
  }
  EXPECT_EQ(m.numa_nodes, std::nullopt);
  EXPECT_EQ(m.affinity, std::nullopt);
  EXPECT_EQ(usable_cpus(m), 1);
}

TEST(Machine, BrokenFilesHaveNoNumbers) {
  const char* const texts[] = {"",
                               "\n\n\n",
                               "MemTotal:",
                               "MemTotal: many kB",
                               "0-",
                               "3-1",
                               "0-999999",
                               "1,,2",
                               "-5",
                               "MemTotal: 12 MB",
                               "0-1;2",
                               "MemTotal: 99999999999999999999 kB",
                               "Max locked memory",
                               "Cpus_allowed_list:\tff-0",
                               "MemTotal: 18446744073709551615 kB"};
  for (const char* text : texts) {
    FakeRoot root;
    for (const char* file :
         {"proc/meminfo", "proc/self/limits", "proc/self/status", "proc/self/cgroup",
          "proc/self/mountinfo", "sys/devices/system/node/online",
          "sys/kernel/mm/transparent_hugepage/hpage_pmd_size"}) {
      root.file(file, text);
    }
    const Machine m = read_machine(root.path());
    EXPECT_EQ(m.ram, std::nullopt) << text;
    EXPECT_EQ(m.locked, std::nullopt) << text;
    EXPECT_EQ(m.affinity, std::nullopt) << text;
    EXPECT_EQ(m.numa_nodes, std::nullopt) << text;
    EXPECT_EQ(m.huge_page, std::nullopt) << text;
  }
}

TEST(Machine, ADirectoryInPlaceOfAFileHasNoNumbers) {
  FakeRoot root;
  root.file("proc/meminfo/inner", "MemTotal: 1 kB");
  EXPECT_EQ(read_machine(root.path()).ram, std::nullopt);
}

TEST(Machine, AvailableMemoryIsTheLesserOfRamAndGroup) {
  Machine m;
  m.ram_available = 10_GiB;
  EXPECT_EQ(available_memory(m), 10_GiB);
  m.cgroup.memory_left = 4_GiB;
  EXPECT_EQ(available_memory(m), 4_GiB);
  m.ram_available = 3_GiB;
  EXPECT_EQ(available_memory(m), 3_GiB);
  m.ram_available = std::nullopt;
  EXPECT_EQ(available_memory(m), 4_GiB);
}

TEST(Machine, CpuQuotaIsRoundedUpAndBoundedByAffinity) {
  Machine m;
  m.affinity = 8;
  EXPECT_EQ(usable_cpus(m), 8);
  m.cgroup.cpus = 1.5;
  EXPECT_EQ(usable_cpus(m), 2);
  m.cgroup.cpus = 0.1;
  EXPECT_EQ(usable_cpus(m), 1);
  m.cgroup.cpus = 64;
  EXPECT_EQ(usable_cpus(m), 8);
}

TEST(Machine, ThisMachineMakesSense) {
  const Machine m = read_machine();
  ASSERT_TRUE(m.ram && m.ram_available && m.affinity && m.locked);
  EXPECT_EQ(m.ram->count % m.page.count, 0u);
  EXPECT_LE(*m.ram_available, *m.ram);
  EXPECT_GE(m.ram->count / m.page.count, static_cast<std::uint64_t>(sysconf(_SC_PHYS_PAGES)) / 2);
  EXPECT_LE(usable_cpus(m), static_cast<int>(sysconf(_SC_NPROCESSORS_CONF)));
  rlimit locked;
  ASSERT_EQ(getrlimit(RLIMIT_MEMLOCK, &locked), 0);
  EXPECT_EQ(m.locked->count, locked.rlim_cur);  // RLIM_INFINITY is kUnlimited
}

TEST(Machine, DiskFreeLooksAtTheNearestParent) {
  const FakeRoot root;
  const auto here = disk_free(root.path());
  ASSERT_TRUE(here);
  EXPECT_GT(here->count, 0u);
  const auto later = disk_free(root.path() / "not" / "there" / "yet.bin");
  ASSERT_TRUE(later);
  // Others write to the same disk between the two questions.
  const auto a = static_cast<double>(here->count), b = static_cast<double>(later->count);
  EXPECT_LT(std::abs(a - b), 0.5 * a);
  EXPECT_TRUE(disk_free("relative/name"));
}

}  // namespace
}  // namespace ballast
