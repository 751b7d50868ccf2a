#include "memory/cgroup.h"

#include <gtest/gtest.h>

#include "tests/memory/fake_root.h"

namespace ballast {
namespace {

constexpr const char* kUnifiedMount =
    "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n";
constexpr const char* kNoLimitV1 = "9223372036854771712\n";

TEST(Cgroup, V2TakesTheTightestAncestor) {
  FakeRoot root;
  root.file("proc/self/cgroup", "0::/user.slice/job/step\n")
      .file("proc/self/mountinfo", kUnifiedMount)
      .file("sys/fs/cgroup/user.slice/memory.max", "max\n")
      .file("sys/fs/cgroup/user.slice/job/memory.max", "1000000\n")
      .file("sys/fs/cgroup/user.slice/job/memory.current", "400000\n")
      .file("sys/fs/cgroup/user.slice/job/step/memory.max", "2000000\n")
      .file("sys/fs/cgroup/user.slice/job/step/memory.current", "300000\n");
  const CgroupLimits c = read_cgroup_limits(root.path());
  EXPECT_EQ(c.memory, Bytes{1000000});
  EXPECT_EQ(c.memory_left, Bytes{600000});
  ASSERT_EQ(c.groups.size(), 2u);
  EXPECT_EQ(c.groups[0].file, "/sys/fs/cgroup/user.slice/job/step/memory.max");
  EXPECT_EQ(c.groups[1].file, "/sys/fs/cgroup/user.slice/job/memory.max");
  EXPECT_EQ(c.groups[1].left, Bytes{600000});
  EXPECT_EQ(c.cpus, std::nullopt);
}

TEST(Cgroup, TheLeastLimitAndTheLeastRestMayBeOfDifferentGroups) {
  FakeRoot root;
  root.file("proc/self/cgroup", "0::/job/step\n")
      .file("proc/self/mountinfo", kUnifiedMount)
      .file("sys/fs/cgroup/job/memory.max", "3000000\n")
      .file("sys/fs/cgroup/job/memory.current", "2900000\n")  // the siblings' doing
      .file("sys/fs/cgroup/job/step/memory.max", "2000000\n")
      .file("sys/fs/cgroup/job/step/memory.current", "500000\n");
  const CgroupLimits c = read_cgroup_limits(root.path());
  EXPECT_EQ(c.memory, Bytes{2000000});
  EXPECT_EQ(c.memory_left, Bytes{100000});
}

TEST(Cgroup, MemoryHighBindsLikeAMaximum) {
  FakeRoot root;
  root.file("proc/self/cgroup", "0::/job\n")
      .file("proc/self/mountinfo", kUnifiedMount)
      .file("sys/fs/cgroup/job/memory.max", "2000000\n")
      .file("sys/fs/cgroup/job/memory.high", "1500000\n")
      .file("sys/fs/cgroup/job/memory.current", "0\n");
  const CgroupLimits c = read_cgroup_limits(root.path());
  EXPECT_EQ(c.memory, Bytes{1500000});
  ASSERT_EQ(c.groups.size(), 1u);
  EXPECT_EQ(c.groups[0].file, "/sys/fs/cgroup/job/memory.high");
}

TEST(Cgroup, FilePagesAreNotInTheWay) {
  FakeRoot root;
  root.file("proc/self/cgroup", "0::/job\n")
      .file("proc/self/mountinfo", kUnifiedMount)
      .file("sys/fs/cgroup/job/memory.max", "1000\n")
      .file("sys/fs/cgroup/job/memory.current", "900\n")
      .file("sys/fs/cgroup/job/memory.stat",
            "anon 200\nfile 700\ninactive_file 500\nactive_file 100\n");
  EXPECT_EQ(read_cgroup_limits(root.path()).memory_left, Bytes{700});
}

TEST(Cgroup, UsageOverTheLimitLeavesNothing) {
  FakeRoot root;
  root.file("proc/self/cgroup", "0::/job\n")
      .file("proc/self/mountinfo", kUnifiedMount)
      .file("sys/fs/cgroup/job/memory.max", "1000\n")
      .file("sys/fs/cgroup/job/memory.current", "1200\n");
  EXPECT_EQ(read_cgroup_limits(root.path()).memory_left, Bytes{0});
}

TEST(Cgroup, MaxMeansNoLimit) {
  FakeRoot root;
  root.file("proc/self/cgroup", "0::/job\n")
      .file("proc/self/mountinfo", kUnifiedMount)
      .file("sys/fs/cgroup/job/memory.max", "max\n")
      .file("sys/fs/cgroup/job/memory.high", "max\n")
      .file("sys/fs/cgroup/job/memory.current", "1200\n")
      .file("sys/fs/cgroup/job/cpu.max", "max 100000\n");
  const CgroupLimits c = read_cgroup_limits(root.path());
  EXPECT_EQ(c.memory, std::nullopt);
  EXPECT_EQ(c.memory_left, std::nullopt);
  EXPECT_EQ(c.cpus, std::nullopt);
}

TEST(Cgroup, V1WithItsControllersInSeparateMounts) {
  FakeRoot root;
  root.file("proc/self/cgroup", "9:name=systemd:/\n4:memory:/a/b\n2:cpu,cpuacct:/a\n0::/\n")
      .file("proc/self/mountinfo",
            "33 25 0:30 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n"
            "34 33 0:31 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
            "37 33 0:34 / /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory\n"
            "43 33 0:40 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n")
      .file("sys/fs/cgroup/memory/memory.limit_in_bytes", kNoLimitV1)
      .file("sys/fs/cgroup/memory/memory.usage_in_bytes", "777777\n")
      .file("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "5000\n")
      .file("sys/fs/cgroup/memory/a/memory.usage_in_bytes", "3000\n")
      .file("sys/fs/cgroup/memory/a/memory.stat", "inactive_file 1\ntotal_inactive_file 1000\n")
      .file("sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", kNoLimitV1)
      .file("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n")
      .file("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n")
      .file("sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "350000\n")
      .file("sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us", "100000\n");
  const CgroupLimits c = read_cgroup_limits(root.path());
  EXPECT_EQ(c.memory, Bytes{5000});
  EXPECT_EQ(c.memory_left, Bytes{3000});
  EXPECT_EQ(c.cpus, 3.5);
  ASSERT_EQ(c.groups.size(), 1u);
  EXPECT_EQ(c.groups[0].file, "/sys/fs/cgroup/memory/a/memory.limit_in_bytes");
}

TEST(Cgroup, V1KnowsAncestorsThatTheMountDoesNotShow) {
  FakeRoot root;
  root.file("proc/self/cgroup", "4:memory:/docker/abc\n")
      .file("proc/self/mountinfo",
            "37 33 0:34 /docker/abc /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n")
      .file("sys/fs/cgroup/memory/memory.limit_in_bytes", kNoLimitV1)
      .file("sys/fs/cgroup/memory/memory.usage_in_bytes", "100\n")
      .file("sys/fs/cgroup/memory/memory.stat", "hierarchical_memory_limit 8000\n");
  const CgroupLimits c = read_cgroup_limits(root.path());
  EXPECT_EQ(c.memory, Bytes{8000});
  EXPECT_EQ(c.memory_left, Bytes{7900});
}

TEST(Cgroup, AContainerSeesItsGroupAtTheMount) {
  for (const char* group :
       {"/docker/abc", "/docker/abc/", "/elsewhere", "/../../host", "/docker/abcdef"}) {
    FakeRoot root;
    root.file("proc/self/cgroup", "0::" + std::string(group) + "\n")
        .file("proc/self/mountinfo",
              "30 23 0:26 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw\n")
        .file("sys/fs/cgroup/memory.max", "4000\n")
        .file("sys/fs/cgroup/memory.current", "1000\n")
        .file("sys/fs/cgroup/cpu.max", "150000 100000\n");
    const CgroupLimits c = read_cgroup_limits(root.path());
    EXPECT_EQ(c.memory_left, Bytes{3000}) << group;
    EXPECT_EQ(c.cpus, 1.5) << group;
  }
}

TEST(Cgroup, MountPointsWithBlanksAreFound) {
  FakeRoot root;
  root.file("proc/self/cgroup", "0::/job\n")
      .file("proc/self/mountinfo", "30 23 0:26 / /mnt/my\\040groups rw - cgroup2 cgroup2 rw\n")
      .file("mnt/my groups/job/memory.max", "123\n");
  EXPECT_EQ(read_cgroup_limits(root.path()).memory, Bytes{123});
}

TEST(Cgroup, BrokenFilesGiveNothing) {
  const std::string huge(3 << 20, 'x');
  for (const std::string& text :
       {std::string(), std::string("\n"), std::string("-1"), std::string("12 34"),
        std::string("99999999999999999999999"), std::string("1e3"), std::string("\0\0", 2), huge}) {
    FakeRoot root;
    root.file("proc/self/cgroup", "0::/job\n")
        .file("proc/self/mountinfo", kUnifiedMount)
        .file("sys/fs/cgroup/job/memory.max", text)
        .file("sys/fs/cgroup/job/memory.current", text)
        .file("sys/fs/cgroup/job/memory.stat", text)
        .file("sys/fs/cgroup/job/cpu.max", text == "12 34" ? "12" : text);
    const CgroupLimits c = read_cgroup_limits(root.path());
    EXPECT_EQ(c.memory, std::nullopt) << text.substr(0, 30);
    EXPECT_EQ(c.cpus, std::nullopt) << text.substr(0, 30);
  }
}

TEST(Cgroup, BrokenMountsAndPathsGiveNothing) {
  for (const char* cgroup : {"", "0", "0::", "0::relative", ":::::", "x:y:z", "4:memory"}) {
    for (const char* mounts : {"", " - ", " - cgroup2", "1 2 3 - cgroup2 c rw",
                               "1 2 3 / - cgroup2 c rw", "1 2 3 / relative rw - cgroup2 c rw"}) {
      FakeRoot root;
      root.file("proc/self/cgroup", cgroup).file("proc/self/mountinfo", mounts);
      EXPECT_EQ(read_cgroup_limits(root.path()).memory, std::nullopt) << cgroup << mounts;
    }
  }
}

TEST(Cgroup, ALimitWithUnreadableUsageCountsAsUnused) {
  FakeRoot root;
  root.file("proc/self/cgroup", "0::/job\n")
      .file("proc/self/mountinfo", kUnifiedMount)
      .file("sys/fs/cgroup/job/memory.max", "1000\n")
      .file("sys/fs/cgroup/job/memory.current", "none\n");
  EXPECT_EQ(read_cgroup_limits(root.path()).memory_left, Bytes{1000});
}

TEST(Cgroup, MemoryGroupIsTheInnermostAndCountsItsOomKills) {
  FakeRoot root;
  root.file("proc/self/cgroup", "0::/job/inner\n")
      .file("proc/self/mountinfo", kUnifiedMount)
      .file("sys/fs/cgroup/job/inner/memory.events", "low 0\noom 4\noom_kill 3\n");
  const auto group = memory_group(root.path());
  ASSERT_TRUE(group.has_value());
  EXPECT_EQ(*group, root.path() / "sys/fs/cgroup/job/inner");
  EXPECT_EQ(oom_kills_of(*group), 3u);
  EXPECT_EQ(oom_kills_of(root.path()), std::nullopt);
  EXPECT_EQ(memory_group(root.path() / "nowhere"), std::nullopt);
}

}  // namespace
}  // namespace ballast
