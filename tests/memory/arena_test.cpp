#include "memory/arena.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "core/thread_pool.h"
#include "memory/machine.h"
#include "memory/process_memory.h"

namespace ballast {
namespace {

using testing::HasSubstr;

std::uint64_t page() { return static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE)); }
std::uintptr_t address(const Arena& a) { return reinterpret_cast<std::uintptr_t>(a.base()); }

TEST(Arena, HasTheExactSizeRoundedToPages) {
  for (const std::uint64_t size : {std::uint64_t{1}, page() - 1, page(), page() + 1,
                                   std::uint64_t{2} << 20, (std::uint64_t{4} << 20) + 1}) {
    const Arena a({size}, "test arena");
    EXPECT_EQ(a.size().count, (size + page() - 1) / page() * page());
    EXPECT_EQ(address(a) % page(), 0u);
    a.base()[0] = a.base()[a.size().count - 1] = std::byte{1};
  }
}

TEST(Arena, OfTwoMebibytesAndMoreIsAligned) {
  for (const Bytes size : {2_MiB, 3_MiB, 64_MiB}) {
    const Arena a(size, "test arena");
    EXPECT_EQ(address(a) % Arena::kHugeAlignment.count, 0u) << size.count;
  }
}

TEST(Arena, MayBeEmpty) {
  Arena a({0}, "test arena");
  EXPECT_EQ(a.base(), nullptr);
  EXPECT_EQ(a.size().count, 0u);
  ThreadPool pool(2);
  a.prefault(pool);
  EXPECT_EQ(Arena().base(), nullptr);
}

TEST(Arena, MovesItsMemory) {
  Arena a(3_MiB, "a");
  std::byte* const base = a.base();
  base[5] = std::byte{7};
  Arena b(std::move(a));
  EXPECT_EQ(a.base(), nullptr);
  EXPECT_EQ(a.size().count, 0u);
  EXPECT_EQ(b.base(), base);
  Arena c(1_MiB, "c");
  c = std::move(b);
  EXPECT_EQ(c.base(), base);
  EXPECT_EQ(c.size(), 3_MiB);
  EXPECT_EQ(c.base()[5], std::byte{7});
  EXPECT_EQ(b.base(), nullptr);
}

TEST(Arena, GivesItsMemoryBack) {
  ThreadPool pool(1);
  const auto before = process_memory();
  {
    Arena a(48_MiB, "test arena");
    a.prefault(pool);
    EXPECT_GE(process_memory()->anonymous, before->anonymous + 48_MiB);
  }
  // Sanitizers keep some memory of their own for every mapping; it is far less than the arena.
  EXPECT_LT(process_memory()->anonymous, before->anonymous + 8_MiB);
}

TEST(Arena, PrefaultMakesPagesPresentAndKeepsContents) {
  for (const int threads : {1, 3}) {
    ThreadPool pool(threads);
    Arena a(70_MiB + 4_KiB, "test arena", HugePages::as_configured);  // an odd last piece
    a.base()[123] = std::byte{42};
    a.base()[a.size().count - 1] = std::byte{43};
    a.prefault(pool);
    EXPECT_EQ(a.base()[123], std::byte{42});
    EXPECT_EQ(a.base()[a.size().count - 1], std::byte{43});
    const auto all = a.base() + a.size().count;
    EXPECT_EQ(std::count(a.base(), all, std::byte{0}),
              static_cast<std::ptrdiff_t>(a.size().count - 2));
    a.prefault(pool);
    EXPECT_EQ(a.base()[123], std::byte{42});
  }
}

TEST(Arena, RefusesASizeBeyondTheAddressSpace) {
  for (const std::uint64_t size : {std::uint64_t{1} << 62, UINT64_MAX, UINT64_MAX / 2}) {
    try {
      Arena a({size}, "host arena");
      FAIL() << size;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::refused);
      EXPECT_THAT(e.what(), HasSubstr("host arena needs"));
      EXPECT_THAT(e.what(), HasSubstr(std::to_string(size) + " bytes"));
      EXPECT_THAT(e.what(), HasSubstr("available: "));
      ASSERT_EQ(e.advice().size(), 1u);
      EXPECT_THAT(e.advice()[0].change, HasSubstr("--ram "));
    }
  }
}

TEST(Arena, PrefaultRefusesMoreThanIsLeftBeforeTouchingIt) {
  Machine machine = read_machine();
  machine.cgroup.memory_left = 1_GiB;
  ThreadPool pool(2);
  Arena fits(64_MiB, "host arena");
  fits.prefault(pool, machine);
  Arena a(1_GiB + 4_KiB, "host arena");
  const auto before = process_memory();
  try {
    a.prefault(pool, machine);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::refused);
    EXPECT_THAT(e.what(), HasSubstr("more than is left; available: 1.074 GB"));
    ASSERT_EQ(e.advice().size(), 1u);
    EXPECT_EQ(e.advice()[0].change, "--ram 512MiB");
  }
  EXPECT_LT(process_memory()->anonymous, before->anonymous + 1_MiB);
}

}  // namespace
}  // namespace ballast
