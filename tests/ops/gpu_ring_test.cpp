// What is read from disk goes through a ring of host memory to the GPU, whose copies may be late.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <span>
#include <vector>

#include "core/to_size.h"
#include "memory/gpu.h"
#include "ops/copy.h"
#include "ops/fill.h"
#include "plan/runner.h"
#include "tests/support/test_device.h"

namespace ballast::gpu_ring_test {
namespace {

// Of the emulated GPU: marks are passed so many milliseconds late.
class LateMarks {
 public:
  explicit LateMarks(const char* milliseconds) {
    ::setenv("BALLAST_EMULATED_EVENTS", milliseconds, 1);
  }
  ~LateMarks() { ::unsetenv("BALLAST_EMULATED_EVENTS"); }
};

TEST(GpuRing, AMarkThatIsNotPassedIsNoError) {
  if (support::test_device() != Device::cuda) GTEST_SKIP() << "needs a GPU";
  const bool emulated = open_gpu().name == "emulated GPU";
  ProgramSet set;
  set.backend.device = Device::cuda;
  ProgramBuilder pb(set, "step");
  ops::fill(pb, pb.persistent("x", {8}, DType::f32, Role::output), 1);
  const MemoryPlan plan = plan_memory(set);
  Runner runner(set, plan);
  GpuQueue queue;
  GpuMark mark;
  const LateMarks late("1000");
  queue.record(mark);
  if (emulated) {  // a real one may be done already
    EXPECT_FALSE(mark.passed());
  }
  EXPECT_NO_THROW(runner.run("step"));  // looks for errors of this thread behind its kernels
  mark.wait();
  EXPECT_TRUE(mark.passed());
}

TEST(GpuRing, DeliversWhatWasRead) {
  if (support::test_device() != Device::cuda) GTEST_SKIP() << "needs a GPU";
  open_gpu();
  constexpr std::int64_t kFills = 150, kSize = 1 << 18;
  ProgramSet set;
  set.backend.device = Device::cuda;
  ProgramBuilder pb(set, "load");
  std::vector<Buffer> ring;
  for (int i = 0; i < 5; ++i) {
    ring.push_back(pb.persistent(fmt::format("staging.{}", i), {kSize}, DType::f32, Role::staging,
                                 Tier::host));
  }
  pb.add_ring(ring);
  const Buffer out = pb.persistent("out", {kFills, kSize}, DType::f32, Role::weights);
  for (std::int64_t n = 0; n < kFills; ++n) {
    const Buffer b = ring[to_size(n) % ring.size()];
    pb.emit("read", {.writes = {b}, .lane = Lane::disk, .splits = 2}, [=](const Bindings& at) {
      const TensorView to = at.out(b);
      std::fill_n(to.as<float>() + at.part() * kSize / 2, kSize / 2,
                  static_cast<float>(2 * n + at.part()));
    });
    ops::copy(pb, b, pb.reshape(pb.rows(out, n, 1), {kSize}), Lane::upload);
  }
  const MemoryPlan plan = plan_memory(set);
  Runner runner(set, plan, {.disk_readers = 3});
  std::vector<float> got(to_size(kSize));
  for (const char* late : {"0", "1"}) {
    const LateMarks marks(late);
    const std::vector<float> nothing(to_size(kFills * kSize), -1);
    runner.write(out, std::as_bytes(std::span(nothing)));
    runner.run("load");
    for (std::int64_t n = 0; n < kFills; ++n) {
      runner.read_part(out, static_cast<std::uint64_t>(n * kSize) * 4,
                       std::as_writable_bytes(std::span(got)));
      for (std::int64_t part = 0; part < 2; ++part) {
        const auto begin = got.begin() + part * kSize / 2;
        ASSERT_EQ(std::count(begin, begin + kSize / 2, static_cast<float>(2 * n + part)), kSize / 2)
            << n << " " << part;
      }
    }
  }
}

}  // namespace
}  // namespace ballast::gpu_ring_test
