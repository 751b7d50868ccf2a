#include "io/shared_files.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>

#include "tests/support/errors.h"
#include "tests/support/temp_dir.h"

namespace ballast {
namespace {

namespace fs = std::filesystem;

TEST(SharedFiles, SmallOnesAreCopiedAndLargeOnesLinked) {
  const test::TempDir dir;
  dir.write("from/small.json", "{}");
  dir.write("from/deep/large", std::string(100, 'x'));
  dir.write("from/.hidden", "");
  fs::create_symlink(dir.path("from/deep/large"), dir.path("from/link"));
  share_folder(dir.path("from"), dir.path("to"), {.copied = Bytes{10}});
  EXPECT_EQ(test::read_whole(dir.path("to/small.json")), "{}");
  EXPECT_FALSE(fs::equivalent(dir.path("to/small.json"), dir.path("from/small.json")));
  for (const char* name : {"to/deep/large", "to/link"}) {
    EXPECT_TRUE(fs::equivalent(dir.path(name), dir.path("from/deep/large"))) << name;
    EXPECT_FALSE(fs::is_symlink(dir.path(name))) << name;
  }
  EXPECT_FALSE(fs::exists(dir.path("to/.hidden")));
  fs::remove_all(dir.path("from"));
  EXPECT_EQ(test::read_whole(dir.path("to/link")), std::string(100, 'x'));
}

// /dev/shm is memory, as a rule another file system than that of temporary files.
TEST(SharedFiles, OnAnotherFileSystemLargeOnesAreSymbolicLinks) {
  const test::TempDir dir;
  const std::string other = "/dev/shm/ballast-shared-files-test-" + std::to_string(::getpid());
  struct stat here {
  }, there{};
  if (::stat(dir.path().c_str(), &here) != 0 || ::stat("/dev/shm", &there) != 0 ||
      here.st_dev == there.st_dev) {
    GTEST_SKIP() << "one file system";
  }
  const std::string file = dir.write("large", std::string(100, 'x'));
  fs::create_directories(other);
  share_file(file, other + "/copy", {.copied = Bytes{10}});
  share_file(file, other + "/link", {.copied = Bytes{10}, .copied_elsewhere = Bytes{99}});
  EXPECT_FALSE(fs::is_symlink(other + "/copy"));
  EXPECT_EQ(test::read_whole(other + "/copy"), std::string(100, 'x'));
  EXPECT_TRUE(fs::is_symlink(other + "/link"));
  EXPECT_EQ(fs::read_symlink(other + "/link"), fs::canonical(file));
  fs::remove_all(other);
}

TEST(SharedFiles, WhatIsNotThereIsNamed) {
  const test::TempDir dir;
  EXPECT_FAILS(share_file(dir.path("nowhere"), dir.path("to")), ErrorCode::io, "nowhere");
  EXPECT_FAILS(share_folder(dir.path("nowhere"), dir.path("to")), ErrorCode::io, "nowhere");
}

}  // namespace
}  // namespace ballast
