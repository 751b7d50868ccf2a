#include "tests/support/allocation_hook.h"

#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <functional>
#include <memory>
#include <new>
#include <thread>
#include <vector>

namespace ballast {
namespace {

using allocation_hook::Count;

Count counted(const std::function<void()>& work) {
  allocation_hook::arm();
  work();
  return allocation_hook::disarm();
}

// Without this the compiler may drop a malloc whose result is only freed.
void keep(void* p) { asm volatile("" : : "r"(p) : "memory"); }

class AllocationHook : public testing::Test {
 protected:
  void SetUp() override { SKIP_WITHOUT_ALLOCATION_HOOK(); }
};

TEST_F(AllocationHook, SeesNothingWhereNothingIsAllocated) {
  std::vector<int> v(100, 1);
  const Count c = counted([&] {
    for (int& x : v) x += 1;
    keep(v.data());
  });
  EXPECT_EQ(c.calls(), 0) << c.first;
  EXPECT_EQ(c.bytes(), 0);
  EXPECT_EQ(c.frees, 0);
  EXPECT_EQ(c.first, "");
}

TEST_F(AllocationHook, SeesEveryHeapFunction) {
  struct Case {
    const char* name;
    std::function<void*()> allocate;
    std::int64_t bytes;
  };
  const std::vector<Case> cases = {
      {"malloc", [] { return std::malloc(100); }, 100},
      {"calloc", [] { return std::calloc(10, 20); }, 200},
      {"aligned_alloc", [] { return std::aligned_alloc(64, 128); }, 128},
      {"memalign", [] { return memalign(64, 96); }, 96},
      {"posix_memalign",
       [] {
         void* p = nullptr;
         return posix_memalign(&p, 4096, 300) == 0 ? p : nullptr;
       },
       300},
  };
  for (const Case& a : cases) {
    const Count c = counted([&] {
      void* const p = a.allocate();
      keep(p);
      std::free(p);
    });
    EXPECT_EQ(c.heap_calls, 1) << a.name;
    EXPECT_EQ(c.heap_bytes, a.bytes) << a.name;
    EXPECT_EQ(c.frees, 1) << a.name;
    EXPECT_EQ(c.map_calls, 0) << a.name;
    EXPECT_NE(c.first, "") << a.name;
  }
}

TEST_F(AllocationHook, SeesRealloc) {
  void* p = std::malloc(10);
  keep(p);
  const Count c = counted([&] {
    p = std::realloc(p, 5000);
    keep(p);
  });
  std::free(p);
  EXPECT_EQ(c.heap_calls, 1);
  EXPECT_EQ(c.heap_bytes, 5000);
}

TEST_F(AllocationHook, SeesOperatorNewAndItsAlignedForm) {
  const Count plain = counted([] { keep(std::make_unique<char[]>(77).get()); });
  EXPECT_EQ(plain.heap_calls, 1);
  EXPECT_EQ(plain.heap_bytes, 77);
  const Count over_aligned = counted([] {
    void* const p = operator new(256, std::align_val_t(128));
    keep(p);
    operator delete(p, std::align_val_t(128));
  });
  EXPECT_EQ(over_aligned.heap_calls, 1);
  EXPECT_EQ(over_aligned.heap_bytes, 256);
}

TEST_F(AllocationHook, SeesAVectorGrow) {
  std::vector<int> v(4);
  v.shrink_to_fit();
  const Count c = counted([&] { v.push_back(1); });
  EXPECT_EQ(c.heap_calls, 1);
  EXPECT_EQ(c.frees, 1);
}

TEST_F(AllocationHook, SeesMmapMremapAndSbrk) {
  const Count c = counted([] {
    void* p = mmap(nullptr, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(p, MAP_FAILED);
    p = mremap(p, 1 << 20, 3 << 20, MREMAP_MAYMOVE);
    ASSERT_NE(p, MAP_FAILED);
    static_cast<char*>(p)[(3 << 20) - 1] = 1;
    munmap(p, 3 << 20);
    ASSERT_NE(sbrk(0), reinterpret_cast<void*>(-1));
  });
  EXPECT_EQ(c.map_calls, 3);
  EXPECT_EQ(c.map_bytes, 4 << 20);
  EXPECT_EQ(c.heap_calls, 0);
}

TEST_F(AllocationHook, ReportsAFailedMmap) {
  const Count c = counted([] {
    EXPECT_EQ(mmap(nullptr, 0, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), MAP_FAILED);
    EXPECT_EQ(errno, EINVAL);
  });
  EXPECT_EQ(c.map_calls, 1);
}

TEST_F(AllocationHook, SeesOtherThreads) {
  const Count made = counted([] { std::thread([] {}).join(); });
  EXPECT_GE(made.heap_calls, 1);  // std::thread keeps its function on the heap

  std::atomic<int> turn{0};
  std::thread other([&] {
    while (turn != 1) std::this_thread::yield();
    for (int i = 0; i < 10; ++i) {
      void* const p = std::malloc(1000);
      keep(p);
      std::free(p);
    }
    turn = 2;
  });
  const Count c = counted([&] {
    turn = 1;
    while (turn != 2) std::this_thread::yield();
  });
  other.join();
  EXPECT_EQ(c.heap_calls, 10);
  EXPECT_EQ(c.heap_bytes, 10000);
}

TEST_F(AllocationHook, IsQuietWhenNotArmed) {
  allocation_hook::arm();
  allocation_hook::disarm();
  keep(std::make_unique<int>(1).get());
  EXPECT_EQ(allocation_hook::disarm().calls(), 0);
}

}  // namespace
}  // namespace ballast
