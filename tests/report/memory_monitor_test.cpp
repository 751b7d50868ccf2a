#include "report/memory_monitor.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "memory/arena.h"
#include "tests/support/allocation_hook.h"

namespace ballast {
namespace {

TEST(MemoryMonitor, SeesMemoryThatTheProcessTookAndGaveBack) {
  MemoryMonitor monitor({{100}, {100}, {100}, 1_GiB});
  monitor.sample({{1}, {2}, {3}, {}}, Counting::exact);
  const Bytes before = monitor.now().ram;
  ASSERT_GT(before.count, 0u);
  {
    const Arena block(64_MiB, "a block");  // mapped: an allocator may keep what it is given back
    std::memset(block.base(), 1, block.size().count);
    monitor.sample({{5}, {1}, {3}, {}}, Counting::exact);
    EXPECT_GE(monitor.now().ram, before + 60_MiB);
    EXPECT_GE(monitor.growth(), 60 << 20);
    EXPECT_EQ(block.base()[12345], std::byte{1});
  }
  monitor.sample({{4}, {1}, {0}, {}}, Counting::exact);
  EXPECT_LE(monitor.now().ram, before + 4_MiB);
  EXPECT_GE(monitor.most().ram, before + 60_MiB);
  EXPECT_EQ(monitor.most().device, Bytes{5});
  EXPECT_EQ(monitor.most().host, Bytes{2});
  EXPECT_EQ(monitor.now().device, Bytes{4});
  EXPECT_EQ(monitor.samples(), 3);
}

TEST(MemoryMonitor, NamesWhatIsAboveItsPlan) {
  MemoryMonitor monitor({{100}, {100}, {100}, {UINT64_MAX}});
  monitor.sample({{100}, {100}, {100}, {}});
  EXPECT_FALSE(monitor.above_plan().has_value());
  monitor.sample({{100}, {101}, {100}, {}});
  monitor.sample({});
  EXPECT_STREQ(monitor.above_plan().value().what, "host");
  MemoryMonitor tight({{100}, {100}, {100}, {1}});
  tight.sample({});
  EXPECT_STREQ(tight.above_plan().value().what, "ram");
}

TEST(MemoryMonitor, AsksTheGpuWhatTheProcessHasThere) {
  Bytes used{70};
  MemoryMonitor monitor({{60}, {100}, {100}, {UINT64_MAX}}, [&] { return used; });
  EXPECT_EQ(monitor.sample({{1}, {2}, {3}, {}}).device, Bytes{70});
  used = Bytes{50};
  monitor.sample({{1}, {2}, {3}, {}});
  EXPECT_EQ(monitor.now().device, Bytes{50});
  EXPECT_EQ(monitor.most().device, Bytes{70});
  const auto above = monitor.above_plan();
  ASSERT_TRUE(above.has_value());
  EXPECT_STREQ(above->what, "device");
  EXPECT_EQ(above->most, Bytes{70});
  EXPECT_EQ(above->planned, Bytes{60});
}

TEST(MemoryMonitor, SampleAllocatesNothing) {
  SKIP_WITHOUT_ALLOCATION_HOOK();
  MemoryMonitor monitor({});
  monitor.sample({});
  allocation_hook::arm();
  for (int i = 0; i < 100; ++i) monitor.sample({});
  const auto seen = allocation_hook::disarm();
  EXPECT_EQ(seen.calls(), 0) << seen.first;
}

}  // namespace
}  // namespace ballast
