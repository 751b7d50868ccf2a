#include "memory/process_memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include "core/thread_pool.h"
#include "memory/arena.h"
#include "tests/memory/fake_root.h"
#include "tests/support/allocation_hook.h"

namespace ballast {
namespace {

constexpr const char* kStatus =
    "Name:\tballast\nVmHWM:\t    5000 kB\nVmRSS:\t    4000 kB\nRssAnon:\t    1000 kB\n"
    "RssFile:\t    2000 kB\nRssShmem:\t     300 kB\n";
constexpr const char* kRollup =
    "00400000-7fff00000000 ---p 00000000 00:00 0  [rollup]\nRss:  4000 kB\nPss_Shmem:  150 kB\n"
    "Anonymous:          1064 kB\nAnonHugePages:         0 kB\n";

std::optional<ProcessMemory> read(const FakeRoot& root, Counting counting) {
  return process_memory(counting, root.path().c_str());
}

TEST(ProcessMemory, ExactTakesAnonymousPagesFromThePageTables) {
  FakeRoot root;
  root.file("status", kStatus).file("smaps_rollup", kRollup);
  const auto exact = read(root, Counting::exact);
  ASSERT_TRUE(exact);
  EXPECT_EQ(exact->anonymous, 1064_KiB);
  EXPECT_EQ(exact->shared, 300_KiB);
  EXPECT_EQ(exact->total(), 1364_KiB);
  const auto quick = read(root, Counting::quick);
  ASSERT_TRUE(quick);
  EXPECT_EQ(quick->anonymous, 1000_KiB);
}

TEST(ProcessMemory, WithoutRollupTheCountersServe) {
  FakeRoot root;
  root.file("status", kStatus);
  const auto found = read(root, Counting::exact);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->anonymous, 1000_KiB);
}

TEST(ProcessMemory, BrokenOrMissingFilesGiveNothing) {
  FakeRoot root;
  EXPECT_EQ(process_memory(Counting::exact, "/nowhere").has_value(), false);
  EXPECT_FALSE(read(root, Counting::exact));
  root.file("status", "RssAnon: lots kB\nRssShmem: 1 kB\n");
  EXPECT_FALSE(read(root, Counting::quick));
  root.file("status", std::string(20000, 'x') + kStatus);  // beyond the buffer
  EXPECT_FALSE(read(root, Counting::quick));
}

TEST(ProcessMemory, SeesAnArenaToThePage) {
  SKIP_WITHOUT_ALLOCATION_HOOK();  // a sanitizer's own memory would be counted too
  ThreadPool pool(2);
  const auto before = process_memory();
  ASSERT_TRUE(before);
  Arena arena(32_MiB + 12_KiB, "test arena", HugePages::as_configured);
  const auto promised = process_memory();
  EXPECT_LT(promised->anonymous - before->anonymous, 1_MiB);
  arena.prefault(pool);
  const auto after = process_memory();
  ASSERT_TRUE(after);
  // Page tables are not counted; what else moves is this test's own stack and heap.
  const Bytes grown = after->anonymous - before->anonymous;
  EXPECT_GE(grown, arena.size());
  EXPECT_LT(grown - arena.size(), 256_KiB);
}

TEST(ProcessMemory, SeesSharedMemory) {
  const auto before = process_memory();
  constexpr std::size_t kSize = 8 << 20;
  void* const p = mmap(nullptr, kSize, PROT_READ | PROT_WRITE,
                       MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  ASSERT_NE(p, MAP_FAILED);
  const auto after = process_memory();
  munmap(p, kSize);
  EXPECT_GE(after->shared - before->shared, Bytes{kSize} - 1_MiB);
}

TEST(ProcessMemory, AllocatesNothing) {
  SKIP_WITHOUT_ALLOCATION_HOOK();
  allocation_hook::arm();
  const bool found = process_memory(Counting::exact) && process_memory(Counting::quick);
  const auto seen = allocation_hook::disarm();
  EXPECT_TRUE(found);
  EXPECT_EQ(seen.calls(), 0) << seen.first;
}

}  // namespace
}  // namespace ballast
