#include "core/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "core/error.h"
#include "core/to_size.h"
#include "tests/support/allocation_hook.h"

namespace ballast {
namespace {

TEST(ThreadPool, RunsEveryTaskOnce) {
  for (const int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (const int tasks : {0, 1, 2, 7, 1000}) {
      std::vector<std::atomic<int>> runs(to_size(tasks));
      pool.parallel(tasks, [&](std::int64_t task, int) { ++runs[to_size(task)]; });
      for (const auto& n : runs) EXPECT_EQ(n, 1);
    }
  }
}

TEST(ThreadPool, WorkersHaveScratchOfTheirOwn) {
  ThreadPool pool(4);
  std::vector<std::int64_t> sums(4, 0);  // not atomic: a worker number has one thread at a time
  for (int round = 0; round < 50; ++round) {
    pool.parallel(100, [&](std::int64_t task, int worker) {
      ASSERT_GE(worker, 0);
      ASSERT_LT(worker, 4);
      sums[to_size(worker)] += task;
    });
  }
  EXPECT_EQ(std::accumulate(sums.begin(), sums.end(), std::int64_t{0}), 50 * 4950);
}

TEST(ThreadPool, WritesOfTasksAreVisibleToTheCaller) {
  ThreadPool pool(3);
  std::vector<int> out(64, 0);
  for (int round = 1; round <= 200; ++round) {
    pool.parallel(64, [&](std::int64_t task, int) { out[to_size(task)] = round; });
    for (const int x : out) ASSERT_EQ(x, round);
  }
}

TEST(ThreadPool, ThrowsTheFirstErrorAndGoesOnWorking) {
  ThreadPool pool(3);
  for (int round = 0; round < 20; ++round) {
    EXPECT_THROW(pool.parallel(100,
                               [](std::int64_t task, int) {
                                 if (task % 10 == 3) throw std::runtime_error("task");
                               }),
                 std::runtime_error);
    std::atomic<int> runs{0};
    pool.parallel(100, [&](std::int64_t, int) { ++runs; });
    EXPECT_EQ(runs, 100);
  }
}

TEST(ThreadPool, ParallelAllocatesNothing) {
  SKIP_WITHOUT_ALLOCATION_HOOK();
  ThreadPool pool(3);
  std::atomic<std::int64_t> sum{0};
  const auto work = [&] { pool.parallel(100, [&](std::int64_t task, int) { sum += task; }); };
  work();
  allocation_hook::arm();
  work();
  const auto seen = allocation_hook::disarm();
  EXPECT_EQ(seen.calls(), 0) << seen.first;
  EXPECT_EQ(sum, 2 * 4950);
}

TEST(ThreadPool, NeedsAThread) { EXPECT_THROW(ThreadPool(0), Error); }

}  // namespace
}  // namespace ballast
