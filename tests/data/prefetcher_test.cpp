#include "data/prefetcher.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include <filesystem>

#include "tests/support/allocation_hook.h"
#include "tests/support/errors.h"
#include "tests/support/tiny_cache.h"

namespace ballast::data {
namespace {

using test::counted;
using test::SampleMemory;
using test::TempDir;
using test::tiny_needs;

constexpr LatentShape kShape{2, 1, 2, 4};

class Prefetching : public ::testing::Test {
 protected:
  Prefetching() {
    for (int i = 0; i < 4; ++i) {
      test::add_sample(dir_.path(), std::to_string(i), kShape, static_cast<float>(100 * i));
    }
    dataset_ = open_dataset({.path = dir_.path(), .needs = tiny_needs()});
  }

  TempDir dir_;
  std::unique_ptr<Dataset> dataset_;
};

TEST_F(Prefetching, FillsTheSlotThatWasHandedOver) {
  Prefetcher ahead(*dataset_);
  SampleMemory a(tiny_needs(), kShape), b(tiny_needs(), kShape);
  const std::vector<SampleRequest> batch = {{.sample = 2, .to = a.target()},
                                            {.sample = 1, .to = b.target()}};
  ahead.wait();  // nothing was asked for: nothing to wait for
  EXPECT_FALSE(ahead.under_way());
  ahead.request(batch);
  EXPECT_TRUE(ahead.under_way());
  ahead.wait();
  EXPECT_EQ(a.latent, counted(16, 200));
  EXPECT_EQ(b.latent, counted(16, 100));
}

TEST_F(Prefetching, HandsOnWhatWentWrongAndGoesOn) {
  Prefetcher ahead(*dataset_);
  SampleMemory a(tiny_needs(), kShape);
  std::filesystem::remove(latent_path(dir_.path(), "3"));
  const std::vector<SampleRequest> bad = {{.sample = 3, .to = a.target()}};
  ahead.request(bad);
  EXPECT_FAILS(ahead.wait(), ErrorCode::io, "latents/3.safetensors");
  const std::vector<SampleRequest> good = {{.sample = 0, .to = a.target()}};
  ahead.request(good);
  ahead.wait();
  EXPECT_EQ(a.latent, counted(16, 0));
}

TEST_F(Prefetching, TakesOneRequestAtATime) {
  Prefetcher ahead(*dataset_);
  SampleMemory a(tiny_needs(), kShape);
  const std::vector<SampleRequest> batch = {{.sample = 0, .to = a.target()}};
  ahead.request(batch);
  EXPECT_FAILS(ahead.request(batch), ErrorCode::internal, "before the last one");
  ahead.wait();
}

TEST_F(Prefetching, MayBeDestroyedWhileReading) {
  SampleMemory a(tiny_needs(), kShape);
  const std::vector<SampleRequest> batch(100, {.sample = 0, .to = a.target()});
  for (int i = 0; i < 20; ++i) {
    Prefetcher ahead(*dataset_);
    ahead.request(batch);
  }
}

TEST_F(Prefetching, TenThousandRequestsLeaveNothingBehind) {
  SKIP_WITHOUT_ALLOCATION_HOOK();
  Prefetcher ahead(*dataset_);
  SampleMemory slots[2] = {{tiny_needs(), kShape}, {tiny_needs(), kShape}};
  const auto step = [&](std::uint32_t n) {
    const SampleRequest r{.sample = n % 4, .to = slots[n % 2].target()};
    ahead.request({&r, 1});
    ahead.wait();
  };
  for (std::uint32_t n = 0; n < 100; ++n) step(n);
  const auto before = ::mallinfo2();
  allocation_hook::arm();
  for (std::uint32_t n = 100; n < 10'100; ++n) step(n);
  const auto after = ::mallinfo2();  // before the hook writes its report
  const auto seen = allocation_hook::disarm();
  EXPECT_EQ(seen.heap_calls, seen.frees);
  EXPECT_EQ(seen.map_calls, 0);
  EXPECT_LE(after.uordblks, before.uordblks + 4096);
  EXPECT_EQ(slots[1].latent, counted(16, 300));
}

}  // namespace
}  // namespace ballast::data
