#include "memory/disk_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

#include "core/to_size.h"
#include "tests/support/allocation_hook.h"
#include "tests/support/errors.h"
#include "tests/support/temp_dir.h"

namespace ballast {
namespace {

using test::TempDir;

std::string sample_bytes(std::size_t n) {
  std::string bytes(n, '\0');
  for (std::size_t i = 0; i < n; ++i) bytes[i] = static_cast<char>(i * 131 + (i >> 8) * 7);
  return bytes;
}

std::string_view text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

struct AlignedBuffer {
  explicit AlignedBuffer(std::size_t n)
      : memory(static_cast<std::byte*>(std::aligned_alloc(kDiskAlignment, n)), &std::free),
        bytes(memory.get(), n) {
    std::fill(bytes.begin(), bytes.end(), std::byte{0xee});
  }
  std::unique_ptr<std::byte, void (*)(void*)> memory;
  std::span<std::byte> bytes;
};

TEST(Widen, GivesTheEnclosingBlocks) {
  EXPECT_EQ(widen(0, 1), (AlignedRange{0, 4096, 0}));
  EXPECT_EQ(widen(4095, 2), (AlignedRange{0, 8192, 4095}));
  EXPECT_EQ(widen(4096, 4096), (AlignedRange{4096, 4096, 0}));
  EXPECT_EQ(widen(4097, 4096), (AlignedRange{4096, 8192, 1}));
  EXPECT_EQ(widen(1000, 24, 512), (AlignedRange{512, 512, 488}));
  EXPECT_EQ(widen(5000, 0), (AlignedRange{4096, 0, 904}));
  EXPECT_FAILS(widen(~0ull - 10, 5), ErrorCode::internal, "passes 2^64");
  EXPECT_FAILS(widen(0, 1, 3000), ErrorCode::internal, "power of two");
}

// Every mode on a disk and on a memory file system.
class DiskFileModes : public testing::TestWithParam<std::tuple<const char*, DiskMode>> {
 protected:
  std::string below() const {
    const std::string name = std::get<0>(GetParam());
    return name == "disk" ? std::filesystem::current_path().string() : "/dev/shm";
  }
  DiskMode mode() const { return std::get<1>(GetParam()); }
  void SetUp() override {
    if (::access(below().c_str(), W_OK) != 0) GTEST_SKIP() << below() << " is not writable";
    if (mode() != DiskMode::direct) return;
    const TempDir probe(below());
    if (DiskFile::open(probe.write("probe", "x")).mode() != DiskMode::direct) {
      GTEST_SKIP() << below() << " has no direct reads";
    }
  }
};

TEST_P(DiskFileModes, ReadsEveryOffsetAndLengthAroundABlock) {
  const TempDir folder(below());
  const std::string bytes = sample_bytes(3 * 4096 + 77);
  const DiskFile file = DiskFile::open(folder.write("f", bytes), mode());
  EXPECT_EQ(file.size(), bytes.size());
  if (mode() != DiskMode::automatic) {
    EXPECT_EQ(file.mode(), mode());
  }
  std::vector<std::byte> room(bytes.size());
  for (std::size_t offset = 0; offset <= bytes.size(); offset += offset < 40 ? 1 : 331) {
    for (const std::size_t n : {0, 1, 2, 7, 8, 511, 4095, 4096, 4097, 9000}) {
      if (n > bytes.size() - offset) continue;
      const std::span<std::byte> to = std::span(room).first(n);
      file.read(offset, to);
      ASSERT_EQ(text(to), std::string_view(bytes).substr(offset, n)) << offset << " " << n;
    }
  }
}

TEST_P(DiskFileModes, ReadsAlignedRangesAndStopsAtTheEnd) {
  const TempDir folder(below());
  for (const std::size_t size : {0, 1, 511, 4095, 4096, 4097, 5 * 4096, 5 * 4096 + 1}) {
    const std::string bytes = sample_bytes(size);
    const DiskFile file = DiskFile::open(folder.write("f", bytes), mode());
    const std::uint64_t step = file.alignment();
    EXPECT_EQ(step % kDiskAlignment, 0u);
    AlignedBuffer room(8 * step);
    for (std::uint64_t offset = 0; offset <= size + step; offset += step) {
      for (std::uint64_t n = 0; n <= 8 * step; n += step) {
        const std::size_t got = file.read_aligned(offset, room.bytes.first(n));
        const std::size_t want = offset >= size ? 0 : std::min<std::uint64_t>(n, size - offset);
        ASSERT_EQ(got, want) << size << " " << offset << " " << n;
        if (want > 0) {
          ASSERT_EQ(text(room.bytes.first(got)), std::string_view(bytes).substr(offset, got));
        }
      }
    }
  }
}

TEST_P(DiskFileModes, FindsAnyRangeInsideItsWidenedOne) {
  const TempDir folder(below());
  const std::string bytes = sample_bytes(4 * 4096 + 5);
  const DiskFile file = DiskFile::open(folder.write("f", bytes), mode());
  AlignedBuffer room(bytes.size() / 4096 * 4096 + 4096);
  for (std::uint64_t offset = 0; offset < bytes.size(); offset += 97) {
    const std::uint64_t n = std::min<std::uint64_t>(5001, bytes.size() - offset);
    const AlignedRange range = widen(offset, n, file.alignment());
    const std::size_t got = file.read_aligned(range.offset, room.bytes.first(range.bytes));
    ASSERT_GE(got, range.skip + n);
    ASSERT_EQ(text(room.bytes.subspan(range.skip, n)), std::string_view(bytes).substr(offset, n));
  }
}

TEST_P(DiskFileModes, RefusesWhatIsNotAligned) {
  const TempDir folder(below());
  const DiskFile file = DiskFile::open(folder.write("f", sample_bytes(9000)), mode());
  AlignedBuffer room(8192);
  EXPECT_FAILS(file.read_aligned(1, room.bytes), ErrorCode::internal, "multiples of");
  EXPECT_FAILS(file.read_aligned(0, room.bytes.first(100)), ErrorCode::internal, "multiples of");
  EXPECT_FAILS(file.read_aligned(0, room.bytes.subspan(8, 4096)), ErrorCode::internal,
               "multiples of");
}

TEST_P(DiskFileModes, SaysThatTheFileShrank) {
  const TempDir folder(below());
  const std::string path = folder.write("f", sample_bytes(3 * 4096));
  const DiskFile file = DiskFile::open(path, mode());
  ASSERT_EQ(::truncate(path.c_str(), 4096 + 10), 0);
  AlignedBuffer room(3 * 4096);
  EXPECT_FAILS(file.read(4096, room.bytes.first(100)), ErrorCode::input, "shrank");
  EXPECT_FAILS(file.read_aligned(0, room.bytes), ErrorCode::input, path);
  EXPECT_FAILS(file.read_aligned(8192, room.bytes.first(4096)), ErrorCode::input, "shrank");
  file.read(0, room.bytes.first(4106));  // what is left can be read
}

TEST_P(DiskFileModes, ThreadsReadAtTheSameTime) {
  const TempDir folder(below());
  const std::string bytes = sample_bytes(64 * 4096);
  const DiskFile file = DiskFile::open(folder.write("f", bytes), mode());
  std::array<int, 4> wrong{};
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      AlignedBuffer room(4096);
      for (std::size_t i = t; i < 64; i += 3) {
        file.read_aligned(i * 4096, room.bytes);
        if (text(room.bytes) != std::string_view(bytes).substr(i * 4096, 4096)) ++wrong[t];
      }
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(wrong, (std::array<int, 4>{}));
}

TEST_P(DiskFileModes, ReadsAllocateNothing) {
  SKIP_WITHOUT_ALLOCATION_HOOK();
  const TempDir folder(below());
  const DiskFile file = DiskFile::open(folder.write("f", sample_bytes(9000)), mode());
  AlignedBuffer room(8192);
  allocation_hook::arm();
  file.read(13, room.bytes, PageCache::drop);
  file.read_aligned(4096, room.bytes, PageCache::drop);
  const auto seen = allocation_hook::disarm();
  EXPECT_EQ(seen.calls(), 0) << seen.first;
}

std::string mode_name(const testing::TestParamInfo<std::tuple<const char*, DiskMode>>& test) {
  constexpr std::array<const char*, 3> kModes = {"direct", "buffered", "automatic"};
  const auto& [where, mode] = test.param;
  return std::string(where) + "_" + kModes[to_size(mode)];
}

INSTANTIATE_TEST_SUITE_P(All, DiskFileModes,
                         testing::Combine(testing::Values("disk", "memory"),
                                          testing::Values(DiskMode::direct, DiskMode::buffered,
                                                          DiskMode::automatic)),
                         mode_name);

TEST(DiskFile, FallsBackWhereDirectReadsAreRefused) {
  // procfs takes no O_DIRECT.
  const char* path = "/proc/version";
  const int fd = ::open(path, O_RDONLY | O_DIRECT);
  if (fd >= 0) {
    ::close(fd);
    GTEST_SKIP() << "this kernel opens " << path << " directly";
  }
  EXPECT_EQ(DiskFile::open(path, DiskMode::automatic).mode(), DiskMode::buffered);
  EXPECT_FAILS(DiskFile::open(path, DiskMode::direct), ErrorCode::io, "direct");
}

// How many pages of the file the kernel holds.
int cached_pages(const std::string& path, std::size_t size) {
  const int fd = ::open(path.c_str(), O_RDONLY);
  void* map = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
  std::vector<unsigned char> seen((size + 4095) / 4096);
  ::mincore(map, size, seen.data());
  ::munmap(map, size);
  ::close(fd);
  return static_cast<int>(
      std::count_if(seen.begin(), seen.end(), [](unsigned char c) { return (c & 1) != 0; }));
}

TEST(DiskFile, DropsThePageCacheOnlyWhenAsked) {
  if (::sysconf(_SC_PAGESIZE) != 4096) GTEST_SKIP() << "pages are not 4096 bytes";
  const TempDir folder;
  const std::string bytes = sample_bytes(16 * 4096 + 9);
  const std::string path = folder.write("f", bytes);
  const int fd = ::open(path.c_str(), O_RDONLY);
  ::fsync(fd);  // dirty pages cannot be dropped
  ::close(fd);
  const DiskFile file = DiskFile::open(path, DiskMode::buffered);
  std::vector<std::byte> room(bytes.size());
  file.read(0, room);
  EXPECT_EQ(cached_pages(path, bytes.size()), 17);
  file.read(1, std::span(room).first(bytes.size() - 1), PageCache::drop);
  EXPECT_EQ(cached_pages(path, bytes.size()), 0);
}

TEST(DiskFile, FollowsLinksAndMoves) {
  const TempDir folder;
  folder.write("real", "content");
  ASSERT_EQ(::symlink("real", folder.path("link").c_str()), 0);
  DiskFile file = DiskFile::open(folder.path("link"));
  EXPECT_EQ(file.size(), 7u);
  DiskFile moved = std::move(file);
  std::array<std::byte, 7> to;
  moved.read(0, to);
  EXPECT_EQ(text(to), "content");
  moved = DiskFile::open(folder.write("other", "abc"));
  moved.read(0, std::span(to).first(3));
  EXPECT_EQ(text(std::span(to).first(3)), "abc");
}

TEST(DiskFile, NamesThePathAndTheReason) {
  const TempDir folder;
  const std::string absent = folder.path("absent");
  EXPECT_FAILS(DiskFile::open(absent), ErrorCode::io, absent + ": cannot open: No such file");
  EXPECT_FAILS(DiskFile::open(folder.path()), ErrorCode::io, "Is a directory");
  EXPECT_FAILS(DiskFile::open("/dev/null"), ErrorCode::io, "not a regular file");
  const std::string fifo = folder.path("fifo");
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_FAILS(DiskFile::open(fifo), ErrorCode::io, "not a regular file");  // and does not wait
  ASSERT_EQ(::symlink("nowhere", folder.path("dangling").c_str()), 0);
  EXPECT_FAILS(DiskFile::open(folder.path("dangling")), ErrorCode::io, "No such file");
}

TEST(DiskFile, ReadingPastTheEndIsOurBug) {
  const TempDir folder;
  const DiskFile file = DiskFile::open(folder.write("f", "12345678"));
  std::array<std::byte, 4> to;
  EXPECT_FAILS(file.read(5, to), ErrorCode::internal, "past the end");
  EXPECT_FAILS(file.read(~0ull, to), ErrorCode::internal, "past the end");
}

}  // namespace
}  // namespace ballast
