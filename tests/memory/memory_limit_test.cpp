#include "memory/memory_limit.h"

#include <gtest/gtest.h>

#include "tests/memory/fake_root.h"

namespace ballast {
namespace {

using Kind = MemoryLimit::Kind;

// 64 MiB of address space and 8 MiB of data are in use, 5 MiB of RAM.
FakeRoot& with_process(FakeRoot& root, const char* address_space, const char* data) {
  return root
      .file("proc/self/status",
            "VmHWM:\t 9000 kB\nVmSize:\t 65536 kB\nVmData:\t 8192 kB\nRssAnon:\t 5120 kB\n"
            "RssShmem:\t 0 kB\n")
      .file(
          "proc/self/limits",
          std::string("Limit                     Soft Limit           Hard Limit           Units\n"
                      "Max stack size            8388608              unlimited            bytes\n"
                      "Max data size             ") +
              data +
              "            unlimited            bytes\n"
              "Max address space         " +
              address_space + "            unlimited            bytes\n");
}

TEST(MemoryLimit, IsTheMachinesRamWithoutAnyOther) {
  FakeRoot root;
  root.file("proc/meminfo", "MemTotal: 1000 kB\nMemAvailable: 990 kB\n");
  const auto limit = ram_limit(read_machine(root.path()), 1);
  ASSERT_TRUE(limit.has_value());
  EXPECT_EQ(limit->kind, Kind::machine);
  EXPECT_EQ(limit->name, "MemTotal");
  EXPECT_EQ(limit->most, Bytes{1000 * 1024});
}

TEST(MemoryLimit, IsWhatOtherProgramsLeave) {
  FakeRoot root;
  root.file("proc/meminfo", "MemTotal: 1000 kB\nMemAvailable: 100 kB\n");
  const auto limit = ram_limit(read_machine(root.path()), 1);
  ASSERT_TRUE(limit.has_value());
  EXPECT_EQ(limit->kind, Kind::available);
  EXPECT_EQ(limit->most, Bytes{110 * 1024});
}

TEST(MemoryLimit, OfAHybridHierarchyIsTheTightestOfBothVersions) {
  FakeRoot root;
  root.file("proc/self/cgroup", "4:memory:/a/b\n0::/c\n")
      .file("proc/self/mountinfo",
            "37 33 0:34 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
            "43 33 0:40 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n")
      .file("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "5000\n")
      .file("sys/fs/cgroup/memory/a/memory.usage_in_bytes", "0\n")
      .file("sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "9000\n")
      .file("sys/fs/cgroup/unified/c/memory.max", "7000\n");
  const auto limit = ram_limit(read_machine(root.path()), 1);
  ASSERT_TRUE(limit.has_value());
  EXPECT_EQ(limit->kind, Kind::control_group);
  EXPECT_EQ(limit->name, "/sys/fs/cgroup/memory/a/memory.limit_in_bytes");
  EXPECT_EQ(limit->most, Bytes{5000});
}

TEST(MemoryLimit, AddressSpaceIsSharedWithStacksAndThreadsThatCompute) {
  FakeRoot root;
  with_process(root, "4294967296", "unlimited");
  const Machine m = read_machine(root.path());
  const auto one = ram_limit(m, 1), two = ram_limit(m, 2);
  ASSERT_TRUE(one && two);
  EXPECT_EQ(one->name, "ulimit -v");
  EXPECT_EQ(one->limit, 4_GiB);
  EXPECT_GT(one->most, 3_GiB);
  EXPECT_LT(one->most, 4_GiB - 64_MiB);
  EXPECT_EQ(one->most - two->most, 256_MiB + 64_MiB + 8_MiB);
}

TEST(MemoryLimit, OfTheDataSegmentIsNamed) {
  FakeRoot root;
  with_process(root, "unlimited", "104857600");
  const auto limit = ram_limit(read_machine(root.path()), 1);
  ASSERT_TRUE(limit.has_value());
  EXPECT_EQ(limit->name, "ulimit -d");
  EXPECT_EQ(limit->most, Bytes{0});  // not even for the threads
}

TEST(MemoryLimit, IsNoneWhereTheSystemShowsNone) {
  const FakeRoot root;
  EXPECT_EQ(ram_limit(read_machine(root.path()), 1), std::nullopt);
}

}  // namespace
}  // namespace ballast
