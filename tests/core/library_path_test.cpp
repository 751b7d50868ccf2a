#include "core/library_path.h"

#include <gtest/gtest.h>

namespace ballast {
namespace {

TEST(LibraryPath, KeepsAbsoluteFoldersAlone) {
  const auto kept = [](const char* path) {
    return absolute_library_path(path).value_or("(as it is)");
  };
  EXPECT_EQ(kept(""), "(as it is)");
  EXPECT_EQ(kept("/usr/local/cuda/lib64"), "(as it is)");
  EXPECT_EQ(kept("/a:/b;$ORIGIN/c"), "(as it is)");
  EXPECT_EQ(kept(":/a"), "/a");  // what `$LD_LIBRARY_PATH:/a` gives where it was unset
  EXPECT_EQ(kept("/a:"), "/a");
  EXPECT_EQ(kept("/a::/b"), "/a:/b");
  EXPECT_EQ(kept("lib:/a:./b:../c"), "/a");
  EXPECT_EQ(kept(":"), "");
  EXPECT_EQ(kept("."), "");
}

}  // namespace
}  // namespace ballast
