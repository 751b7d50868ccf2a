#include "io/atomic_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/to_size.h"
#include "tests/support/errors.h"
#include "tests/support/file_size_limit.h"
#include "tests/support/temp_dir.h"

namespace ballast {
namespace {

using test::read_whole;
using test::TempDir;

std::size_t files_in(const std::string& folder) {
  return to_size(std::distance(std::filesystem::directory_iterator(folder), {}));
}

TEST(AtomicFile, AppearsWhenCommitted) {
  const TempDir folder;
  const std::string path = folder.path("out");
  AtomicFile file(path);
  file.write("one ");
  file.write("two");
  EXPECT_EQ(file.written(), 7u);
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_TRUE(std::filesystem::exists(file.temporary_path()));
  file.commit();
  EXPECT_EQ(read_whole(path), "one two");
  EXPECT_EQ(files_in(folder.path()), 1u);
  EXPECT_FAILS(file.write("more"), ErrorCode::internal, "after commit");
  EXPECT_FAILS(file.commit(), ErrorCode::internal, "twice");
}

TEST(AtomicFile, ReplacesTheOldFileAtOnce) {
  for (const Durability durability : {Durability::power_cut, Durability::process}) {
    const TempDir folder;
    const std::string path = folder.write("out", "old");
    AtomicFile file(path);
    file.write("new");
    EXPECT_EQ(read_whole(path), "old");
    file.commit(durability);
    EXPECT_EQ(read_whole(path), "new");
    EXPECT_EQ(files_in(folder.path()), 1u);
  }
}

TEST(AtomicFile, LeavesNothingWhenNotCommitted) {
  const TempDir folder;
  const std::string path = folder.write("out", "old");
  {
    AtomicFile file(path);
    file.write("new");
    AtomicFile moved = std::move(file);
    moved.write("er");
  }
  EXPECT_EQ(read_whole(path), "old");
  EXPECT_EQ(files_in(folder.path()), 1u);
}

TEST(AtomicFile, TwoWritersOfOnePathDoNotMeet) {
  const TempDir folder;
  AtomicFile a(folder.path("out"));
  AtomicFile b(folder.path("out"));
  a.write("a");
  b.write("b");
  a.commit();
  EXPECT_EQ(read_whole(folder.path("out")), "a");
  b.commit();
  EXPECT_EQ(read_whole(folder.path("out")), "b");
}

TEST(AtomicFile, TakesRelativePathsAndLongNames) {
  const TempDir folder(".");
  const std::string longest = folder.path() + "/" + std::string(255, 'n');
  AtomicFile file(longest);
  file.write("x");
  file.commit();
  EXPECT_EQ(read_whole(longest), "x");
  const std::string bare = "ballast_atomic_file_test_" + std::to_string(::getpid());
  AtomicFile here(bare);
  here.commit();
  EXPECT_TRUE(std::filesystem::remove(bare));
}

TEST(AtomicFile, GivesTheModeThatTheUmaskLeaves) {
  const TempDir folder;
  const mode_t mask = ::umask(027);
  AtomicFile file(folder.path("out"));
  file.commit();
  ::umask(mask);
  struct stat s {};
  ASSERT_EQ(::stat(folder.path("out").c_str(), &s), 0);
  EXPECT_EQ(s.st_mode & 0777, 0640u);
}

TEST(AtomicFile, AFailedWriteLeavesTheOldFile) {
  const TempDir folder;
  const std::string path = folder.write("out", "old");
  {
    const test::FileSizeLimit limit(10'000);
    AtomicFile file(path);
    file.write(std::string(9'000, 'x'));
    // The first 1000 bytes still fit: the message gives the place where it stopped.
    EXPECT_FAILS(file.write(std::string(5'000, 'y')), ErrorCode::io,
                 path + ": cannot write 4000 bytes at offset 10000: File too large");
  }
  EXPECT_EQ(read_whole(path), "old");
  EXPECT_EQ(files_in(folder.path()), 1u);
}

TEST(AtomicFile, NamesThePathAndTheReason) {
  const TempDir folder;
  EXPECT_FAILS(AtomicFile(folder.path("no/such/out")), ErrorCode::io, "No such file");
  EXPECT_FAILS(AtomicFile(folder.path() + "/"), ErrorCode::io, folder.path());
  std::filesystem::create_directory(folder.path("taken"));
  EXPECT_FAILS(AtomicFile(folder.path("taken")), ErrorCode::io, "Is a directory");
  // A folder that comes while the file is written.
  AtomicFile file(folder.path("later"));
  std::filesystem::create_directory(folder.path("later"));
  EXPECT_FAILS(file.commit(), ErrorCode::io, "Is a directory");
}

TEST(AtomicFile, ReplacesWhatASymbolicLinkLeadsTo) {
  const TempDir folder;
  std::filesystem::create_directory(folder.path("models"));
  const std::string target = folder.write("models/real", "old");
  std::filesystem::create_symlink("models/real", folder.path("link"));
  std::filesystem::create_symlink(folder.path("link"), folder.path("outer"));
  AtomicFile file(folder.path("outer"));
  EXPECT_TRUE(file.temporary_path().starts_with(folder.path("models/")));  // of its file system
  file.write("new");
  file.commit();
  EXPECT_EQ(read_whole(target), "new");
  EXPECT_TRUE(std::filesystem::is_symlink(folder.path("link")));
  EXPECT_TRUE(std::filesystem::is_symlink(folder.path("outer")));

  std::filesystem::create_symlink("models/fresh", folder.path("dangling"));
  AtomicFile fresh(folder.path("dangling"));
  fresh.write("made");
  fresh.commit();
  EXPECT_EQ(read_whole(folder.path("models/fresh")), "made");

  std::filesystem::create_symlink("loop", folder.path("loop"));
  EXPECT_FAILS(AtomicFile(folder.path("loop")), ErrorCode::io, "symbolic links");
}

TEST(AtomicFile, NeverReplacesADeviceOrAFifo) {
  const TempDir folder;
  const std::string fifo = folder.path("fifo");
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_FAILS(AtomicFile{fifo}, ErrorCode::io, "is a FIFO");
  EXPECT_FAILS(check_can_write(fifo), ErrorCode::io, "is a FIFO");
  EXPECT_FAILS(AtomicFile("/dev/null"), ErrorCode::io, "/dev/null is a character device");
  std::filesystem::create_symlink("/dev/null", folder.path("null"));
  EXPECT_FAILS(AtomicFile(folder.path("null")), ErrorCode::io, "is a character device");
  // One that comes while the file is written.
  AtomicFile file(folder.path("late"));
  ASSERT_EQ(::mkfifo(folder.path("late").c_str(), 0600), 0);
  EXPECT_FAILS(file.commit(), ErrorCode::io, "is a FIFO");
  EXPECT_TRUE(std::filesystem::is_fifo(folder.path("late")));
}

TEST(AtomicFile, WhetherItCanBeWrittenIsKnownBefore) {
  const TempDir folder;
  check_can_write(folder.path("out"));
  check_can_write(folder.write("old", "old"));
  EXPECT_EQ(read_whole(folder.path("old")), "old");
  std::filesystem::create_directory(folder.path("taken"));
  EXPECT_EQ(files_in(folder.path()), 2u);
  const auto none = test::error_of([&] { check_can_write(folder.path("no/such/out")); });
  ASSERT_TRUE(none);
  EXPECT_EQ(none->code(), ErrorCode::io);
  EXPECT_EQ(none->advice().at(0).change, "mkdir -p " + folder.path("no/such/"));
  EXPECT_FAILS(check_can_write(folder.path("taken")), ErrorCode::io, "Is a directory");
  EXPECT_FAILS(check_can_write(folder.path(std::string(300, 'x'))), ErrorCode::io, "too long");
  EXPECT_FAILS(check_can_write(folder.path("old/out")), ErrorCode::io, "Not a directory");
  EXPECT_FAILS(check_can_write("/proc/out"), ErrorCode::io, "/proc/out");
}

}  // namespace
}  // namespace ballast
