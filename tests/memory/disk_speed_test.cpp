#include "memory/disk_speed.h"

#include <gmock/gmock.h>

#include <filesystem>

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

}  // namespace
}  // namespace ballast
