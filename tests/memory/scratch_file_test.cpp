#include "memory/scratch_file.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <vector>

#include "tests/support/errors.h"
#include "tests/support/small_disk.h"
#include "tests/support/temp_dir.h"

namespace ballast {
namespace {

constexpr std::size_t kBlock = kDiskAlignment;

struct Blocks {
  explicit Blocks(std::size_t n, int value)
      : memory(static_cast<std::byte*>(std::aligned_alloc(kBlock, n * kBlock)), &std::free),
        bytes(memory.get(), n * kBlock) {
    std::ranges::fill(bytes, static_cast<std::byte>(value));
  }
  bool all(int value) const {
    return std::ranges::all_of(bytes,
                               [&](std::byte b) { return b == static_cast<std::byte>(value); });
  }
  std::unique_ptr<std::byte, void (*)(void*)> memory;
  std::span<std::byte> bytes;
};

TEST(ScratchFile, IsZeroAtFirstAndLeavesNoName) {
  const test::TempDir dir;
  const ScratchFile file = ScratchFile::create(dir.path(), Bytes{8 * kBlock});
  EXPECT_EQ(file.size().count, 8 * kBlock);
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
  Blocks all(8, 7);
  file.read_aligned(0, all.bytes);
  EXPECT_TRUE(all.all(0));
}

TEST(ScratchFile, GivesBackWhatWasWrittenHoweverItIsRead) {
  const test::TempDir dir;
  const ScratchFile file = ScratchFile::create(dir.path(), Bytes{8 * kBlock});
  file.write_aligned(2 * kBlock, Blocks(3, 1).bytes);
  file.write_aligned(3 * kBlock, Blocks(1, 2).bytes);
  std::vector<std::byte> some(kBlock + 100);
  file.read(3 * kBlock - 50, some);  // 50 of 1, a block of 2, 50 of 1
  EXPECT_EQ(std::ranges::count(some, std::byte{1}), 100);
  EXPECT_EQ(std::ranges::count(some, std::byte{2}), static_cast<std::ptrdiff_t>(kBlock));
  file.write(3 * kBlock + 10, std::vector<std::byte>(20, std::byte{3}));
  Blocks back(8, 9);
  file.read_aligned(0, back.bytes);
  EXPECT_EQ(std::ranges::count(back.bytes, std::byte{3}), 20);
  EXPECT_EQ(std::ranges::count(back.bytes, std::byte{2}), static_cast<std::ptrdiff_t>(kBlock) - 20);
  file.zero_aligned(2 * kBlock, 2 * kBlock);
  file.read_aligned(0, back.bytes);
  EXPECT_EQ(std::ranges::count(back.bytes, std::byte{1}), static_cast<std::ptrdiff_t>(kBlock));
  EXPECT_EQ(std::ranges::count(back.bytes, std::byte{0}), static_cast<std::ptrdiff_t>(7 * kBlock));
}

TEST(ScratchFile, RefusesWhatIsNotAlignedOrNotThere) {
  const test::TempDir dir;
  const ScratchFile file = ScratchFile::create(dir.path(), Bytes{2 * kBlock});
  const Blocks one(1, 1);
  EXPECT_FAILS(file.write_aligned(100, one.bytes), ErrorCode::internal, "multiples of 4096");
  EXPECT_FAILS(file.write_aligned(0, one.bytes.first(100)), ErrorCode::internal, "multiples");
  EXPECT_FAILS(file.write_aligned(2 * kBlock, one.bytes), ErrorCode::internal, "scratch file of");
  EXPECT_FAILS(ScratchFile::create("/nonexistent/folder", Bytes{kBlock}), ErrorCode::io,
               "/nonexistent/folder");
}

TEST(ScratchFile, AFullDiskShowsWhenItIsMadeAndSaysWhatIsMissing) {
  const test::TempDir dir;
  const test::SmallDisk disk(dir.path(), "size=1m");
  if (!disk.mounted()) GTEST_SKIP() << "no right to mount a small disk here";
  EXPECT_FAILS(ScratchFile::create(disk.path(), 3_MiB), ErrorCode::io,
               "the optimizer's state takes 3.146 MB there");
  EXPECT_TRUE(std::filesystem::is_empty(disk.path()));
  EXPECT_EQ(ScratchFile::create(disk.path(), Bytes{1 << 19}).size().count, 1u << 19);
}

}  // namespace
}  // namespace ballast
