#include "ops/linear/sgemm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/thread_pool.h"
#include "core/to_size.h"
#include "tests/support/allocation_hook.h"

namespace ballast::ops::sgemm_test {
namespace {

std::vector<float> normal(std::size_t n, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> d;
  std::vector<float> v(n);
  for (float& x : v) x = d(random);
  return v;
}

TEST(Sgemm, MultipliesRowMajorMatricesWithAnyTranspose) {
  const std::int64_t m = 5, n = 7, k = 3;
  const std::vector<float> a = normal(15, 1), b = normal(21, 2);
  for (const bool ta : {false, true}) {
    for (const bool tb : {false, true}) {
      std::vector<float> c(35, 1.0f);
      sgemm({.transpose_a = ta,
             .transpose_b = tb,
             .m = m,
             .n = n,
             .k = k,
             .alpha = 2,
             .a = a.data(),
             .lda = ta ? m : k,
             .b = b.data(),
             .ldb = tb ? k : n,
             .beta = 3,
             .c = c.data(),
             .ldc = n});
      for (std::int64_t i = 0; i < m; ++i) {
        for (std::int64_t j = 0; j < n; ++j) {
          double want = 3;
          for (std::int64_t l = 0; l < k; ++l) {
            want += 2.0 * a[to_size(ta ? l * m + i : i * k + l)] *
                    b[to_size(tb ? j * k + l : l * n + j)];
          }
          EXPECT_NEAR(c[to_size(i * n + j)], want, 1e-5);
        }
      }
    }
  }
}

TEST(Sgemm, DoesNotReadTheResultWhenBetaIsZero) {
  for (const std::int64_t size : {1, 16, 300}) {
    const auto count = to_size(size * size);
    const std::vector<float> a = normal(count, 1), b = normal(count, 2);
    std::vector<float> c(count, std::numeric_limits<float>::quiet_NaN());
    sgemm({.m = size,
           .n = size,
           .k = size,
           .a = a.data(),
           .lda = size,
           .b = b.data(),
           .ldb = size,
           .c = c.data(),
           .ldc = size});
    for (const float v : c) ASSERT_TRUE(std::isfinite(v)) << size;
  }
}

TEST(Sgemm, RefusesSizesThatTheLibraryCannotCount) {
  float one = 1;
  EXPECT_THROW(sgemm({.m = 1,
                      .n = 1,
                      .k = 1ll << 31,
                      .a = &one,
                      .lda = 1ll << 31,
                      .b = &one,
                      .ldb = 1,
                      .c = &one,
                      .ldc = 1}),
               Error);
}

// Each thread's product must come out as if it were alone: packing buffers are not shared.
TEST(Sgemm, GivesTheSameBitsFromManyThreadsAtOnce) {
  const std::int64_t size = 150, tasks = 64;
  const auto count = to_size(size * size);
  const std::vector<float> a = normal(count, 1), b = normal(count, 2);
  const auto product = [&](std::vector<float>& c) {
    sgemm({.transpose_b = true,
           .m = size,
           .n = size,
           .k = size,
           .a = a.data(),
           .lda = size,
           .b = b.data(),
           .ldb = size,
           .c = c.data(),
           .ldc = size});
  };
  std::vector<float> alone(count);
  product(alone);
  std::vector<std::vector<float>> c(tasks, std::vector<float>(count));
  ThreadPool pool(5);
  pool.parallel(tasks, [&](std::int64_t t, int) { product(c[to_size(t)]); });
  for (const auto& each : c) {
    ASSERT_EQ(std::memcmp(each.data(), alone.data(), count * sizeof(float)), 0);
  }
}

TEST(WarmUpBlas, LeavesNothingToMapForCallsOfThePool) {
  SKIP_WITHOUT_ALLOCATION_HOOK();
  ThreadPool pool(4);
  warm_up_blas(pool);
  const std::int64_t size = 400;
  const auto count = to_size(size * size);
  const std::vector<float> a = normal(count, 1);
  std::vector<std::vector<float>> c(16, std::vector<float>(count));
  allocation_hook::arm();
  pool.parallel(16, [&](std::int64_t t, int) {
    sgemm({.m = size,
           .n = size,
           .k = size,
           .a = a.data(),
           .lda = size,
           .b = a.data(),
           .ldb = size,
           .c = c[to_size(t)].data(),
           .ldc = size});
  });
  const auto seen = allocation_hook::disarm();
  EXPECT_EQ(seen.calls(), 0) << seen.first;
}

std::int64_t anonymous_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (word == "RssAnon:") {
      std::int64_t kilobytes = 0;
      status >> kilobytes;
      return kilobytes * 1024;
    }
  }
  return 0;
}

// The plan has a line of this size for each thread.
TEST(WarmUpBlas, MakesTheBuffersOnceAndAtThePlannedSize) {
  SKIP_WITHOUT_ALLOCATION_HOOK();
  const int threads = 24;  // more than any other test of this process
  ThreadPool pool(threads);
  const std::int64_t before = anonymous_bytes();
  allocation_hook::arm();
  warm_up_blas(pool);
  const auto first = allocation_hook::disarm();
  const std::int64_t added = anonymous_bytes() - before;
  EXPECT_GT(first.map_calls, 0);
  EXPECT_LE(first.map_calls, threads);
  EXPECT_GT(added, first.map_calls * (256 << 10));
  EXPECT_LE(added, threads * static_cast<std::int64_t>(kBlasBufferTouched.count));
  allocation_hook::arm();
  warm_up_blas(pool);
  EXPECT_EQ(allocation_hook::disarm().map_calls, 0);
}

}  // namespace
}  // namespace ballast::ops::sgemm_test
