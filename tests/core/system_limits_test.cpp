#include "core/system_limits.h"

#include <gmock/gmock.h>
#include <sys/resource.h>

#include <cerrno>

#include "tests/memory/fake_root.h"

namespace ballast {
namespace {

using ::testing::HasSubstr;

TEST(PidsLimit, IsTheLeastUpTheTree) {
  FakeRoot root;
  root.file("proc/self/cgroup", "0::/a/b\n")
      .file("sys/fs/cgroup/pids.max", "9000\n")
      .file("sys/fs/cgroup/a/pids.max", "20\n")
      .file("sys/fs/cgroup/a/b/pids.max", "100\n");
  EXPECT_EQ(pids_limit(root.path()), "/sys/fs/cgroup/a/pids.max = 20");
}

TEST(PidsLimit, OfVersionOneBesideVersionTwo) {
  FakeRoot root;
  root.file("proc/self/cgroup", "8:pids:/job\n0::/\n")
      .file("sys/fs/cgroup/pids/job/pids.max", "30\n")
      .file("sys/fs/cgroup/pids/pids.max", "max\n");
  EXPECT_EQ(pids_limit(root.path()), "/sys/fs/cgroup/pids/job/pids.max = 30");
}

TEST(PidsLimit, IsNoneWhereNoneIsSet) {
  FakeRoot root;
  root.file("proc/self/cgroup", "0::/a\n").file("sys/fs/cgroup/a/pids.max", "max\n");
  EXPECT_EQ(pids_limit(root.path()), std::nullopt);
}

TEST(PidsLimit, OfAGroupWithoutAPathIsNone) {
  FakeRoot root;
  root.file("proc/self/cgroup", "0::a\n8:pids:b/c\n0::\n").file("sys/fs/cgroup/pids.max", "9\n");
  EXPECT_EQ(pids_limit(root.path()), std::nullopt);
}

TEST(OpenFiles, AreRaisedToTheHardLimitAndNamedWhenTheyRunOut) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit low = before;
  low.rlim_cur = 32;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
  const std::vector<Advice> advice = advice_for_errno(EMFILE);
  raise_open_files_limit();
  rlimit now{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &now), 0);
  EXPECT_EQ(now.rlim_cur, now.rlim_max);
  ::setrlimit(RLIMIT_NOFILE, &before);
  ASSERT_EQ(advice.size(), 1u);
  EXPECT_THAT(advice[0].effect, HasSubstr("ulimit -n allows this process 32 open files"));
  EXPECT_TRUE(advice_for_errno(ENOENT).empty());
}

}  // namespace
}  // namespace ballast
