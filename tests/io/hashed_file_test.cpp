#include "io/hashed_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include "tests/support/allocation_hook.h"
#include "tests/support/child_process.h"
#include "tests/support/errors.h"
#include "tests/support/temp_dir.h"

namespace ballast {
namespace {

using test::TempDir;

TEST(HashedFile, HoldsWhatWasWrittenAndItsChecksum) {
  const TempDir folder;
  std::string text;
  for (int i = 0; i < 3'000'000; ++i) text += static_cast<char>(i * 31 >> 5);
  HashedFile file(folder.path("f"));
  file.write(std::string_view(text).substr(0, 1'500'001));
  file.write("");
  file.write(std::string_view(text).substr(1'500'001));
  file.close();
  EXPECT_TRUE(test::read_whole(folder.path("f")) == text);
  EXPECT_EQ(file.written(), text.size());
  EXPECT_EQ(file.checksum(), checksum_text(text));
  EXPECT_FAILS(file.write("x"), ErrorCode::internal, "after close");
}

// Three windows of write-back, from a single write.
TEST(HashedFile, WritesLargeFilesWithoutAllocating) {
  SKIP_WITHOUT_ALLOCATION_HOOK();
  const TempDir folder;
  const std::vector<std::byte> zeros(100 << 20);
  HashedFile file(folder.path("f"));
  allocation_hook::arm();
  file.write(zeros);
  file.close();
  const auto seen = allocation_hook::disarm();
  EXPECT_EQ(seen.calls(), 0) << seen.first;
  EXPECT_EQ(std::filesystem::file_size(folder.path("f")), zeros.size());
}

TEST(HashedFile, DoesNotReplaceAFile) {
  const TempDir folder;
  EXPECT_FAILS(HashedFile(folder.write("f", "old")), ErrorCode::io, "File exists");
  EXPECT_EQ(test::read_whole(folder.path("f")), "old");
}

TEST(HashedFile, NamesThePlaceWhereTheDiskWasFull) {
  const TempDir folder;
  test::ChildProcess child([&] {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{10'000, 10'000};
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) return 1;
    HashedFile file(folder.path("f"));
    const auto error = test::error_of([&] { file.write(std::string(12'000, 'x')); });
    const std::string expected = "cannot write 2000 bytes at offset 10000: File too large";
    return error && std::string(error->what()).find(expected) != std::string::npos ? 0 : 2;
  });
  EXPECT_EQ(child.wait(), 0);
}

}  // namespace
}  // namespace ballast
