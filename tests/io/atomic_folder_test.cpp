#include "io/atomic_folder.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "tests/support/errors.h"
#include "tests/support/temp_dir.h"

namespace ballast {
namespace {

using test::read_whole;
using test::TempDir;

std::set<std::string> names_in(const std::string& folder) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    names.insert(entry.path().filename().string());
  }
  return names;
}

void put(AtomicFolder& folder, const std::string& text) { std::ofstream(folder.file("f")) << text; }

TEST(AtomicFolder, AppearsWhenCommitted) {
  const TempDir parent;
  AtomicFolder folder(parent.path("out"));
  put(folder, "one");
  EXPECT_FALSE(std::filesystem::exists(parent.path("out")));
  folder.commit();
  EXPECT_EQ(read_whole(parent.path("out/f")), "one");
  EXPECT_EQ(names_in(parent.path()), std::set<std::string>{"out"});
  EXPECT_FAILS(folder.commit(), ErrorCode::internal, "twice");
  EXPECT_FAILS(folder.file("f"), ErrorCode::internal, "after commit");
}

TEST(AtomicFolder, ReplacesTheOldOneAsAWhole) {
  const TempDir parent;
  parent.write("out/old", "old");
  {
    AtomicFolder abandoned(parent.path("out"));
    put(abandoned, "half");
  }
  EXPECT_EQ(names_in(parent.path("out")), std::set<std::string>{"old"});
  AtomicFolder folder(parent.path("out"));
  put(folder, "new");
  folder.commit();
  EXPECT_EQ(names_in(parent.path("out")), std::set<std::string>{"f"});
  EXPECT_EQ(names_in(parent.path()), std::set<std::string>{"out"});
}

TEST(AtomicFolder, NamesThePathAndTheReason) {
  const TempDir parent;
  EXPECT_FAILS(AtomicFolder(parent.path("no/such")), ErrorCode::io, "No such file");
  parent.write("file", "mine");
  AtomicFolder folder(parent.path("file"));
  EXPECT_FAILS(folder.commit(), ErrorCode::io, "Not a directory");
  EXPECT_EQ(read_whole(parent.path("file")), "mine");
  EXPECT_FAILS(create_folders(parent.path("file/below")), ErrorCode::io, "Not a directory");
  EXPECT_FAILS(create_folders(parent.path("file")), ErrorCode::io, "Not a directory");
}

TEST(AtomicFolder, DeletesByRenamingFirst) {
  const TempDir parent;
  parent.write("out/f", "x");
  parent.write("out.deleting/old", "half deleted earlier");
  delete_folder(parent.path("out"));
  EXPECT_EQ(names_in(parent.path()), std::set<std::string>{});
  EXPECT_FAILS(delete_folder(parent.path("out")), ErrorCode::io, "No such file");
}

}  // namespace
}  // namespace ballast
