#include "memory/disk_speed.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

#include "memory/disk_file.h"
#include "tests/support/temp_dir.h"

namespace ballast {
namespace {

using ::testing::HasSubstr;

TEST(DiskTrial, MeasuresAFolderAndLeavesNothingBehind) {
  const test::TempDir dir;
  const DiskSpeed speed = measure_disk(dir.path());
  EXPECT_EQ(speed.problem, "");
  EXPECT_GT(speed.read, 0);
  EXPECT_GT(speed.write.value(), 0);
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
}

TEST(DiskTrial, FolderThatIsNotThereIsAnAnswer) {
  EXPECT_THAT(measure_disk("/nonexistent/folder").problem, HasSubstr("/nonexistent/folder"));
}

TEST(DiskTrial, StreamsAFileOnce) {
  const test::TempDir dir;
  const std::string path = dir.path() + "/file";
  std::ofstream(path) << std::string(3 * kDiskRequest + 4096, 'x');
  const DiskSpeed speed = measure_streaming(path, 2, 60);
  EXPECT_EQ(speed.bytes, Bytes{3 * kDiskRequest}) << "whole requests";
  EXPECT_GT(speed.read, 0);
  EXPECT_EQ(measure_streaming(path, 2, 0).bytes, Bytes{});
  std::filesystem::resize_file(path, 200ull << 20);  // in runs of 64 MiB, the last one short
  EXPECT_EQ(measure_streaming(path, 2, 60).bytes, Bytes{200ull << 20});
}

}  // namespace
}  // namespace ballast
