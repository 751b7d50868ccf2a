// What goes on beside the first programs of a GPU: pinning, and what libraries prepare. The
// instructions are operations: layers above the plan, which its own tests do not know.

#include <gmock/gmock.h>

#include <chrono>
#include <cstdlib>
#include <future>
#include <thread>
#include <vector>

#include "core/error.h"
#include "memory/gpu.h"
#include "ops/copy.h"
#include "ops/fill.h"
#include "plan/runner.h"
#include "tests/support/test_device.h"

namespace ballast::gpu_opening_test {
namespace {

constexpr std::int64_t kSize = 4000;  // more than a page

class GpuOpeningTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (support::test_device() != Device::cuda) GTEST_SKIP() << "needs a GPU";
    set_.backend.device = Device::cuda;
  }
  Buffer buffer(ProgramBuilder& pb, const char* name, Tier tier = Tier::device) {
    return pb.persistent(name, {kSize}, DType::f32, Role::output, tier);
  }

  ProgramSet set_;
};

// The emulated GPU copies nothing to memory that is not pinned; a real one takes its time.
TEST_F(GpuOpeningTest, NothingIsCopiedBackBeforeMemoryIsPinned) {
  if (open_gpu().name != "emulated GPU") GTEST_SKIP() << "a real one pins as fast as it can";
  ProgramBuilder pb(set_, "step");
  const Buffer x = buffer(pb, "x"), back = buffer(pb, "back", Tier::host);
  ops::fill(pb, x, 3);
  ops::copy(pb, x, back, Lane::download);
  const MemoryPlan plan = plan_memory(set_);
  ::setenv("BALLAST_EMULATED_PINNING", "300", 1);
  Runner runner(set_, plan);
  runner.run("step");
  ::unsetenv("BALLAST_EMULATED_PINNING");
  std::vector<float> got(kSize);
  runner.read(back, std::as_writable_bytes(std::span(got)));
  EXPECT_EQ(got, std::vector<float>(kSize, 3));
}

// A program that reads weights: with nothing but bytes to copy it need not wait for pinning, with a
// kernel that reaches for host memory it must, on whatever queue that is.
TEST_F(GpuOpeningTest, WeightsAreReadBesidePinningWhereBytesAreCopiedAlone) {
  if (open_gpu().name != "emulated GPU") GTEST_SKIP() << "a real one pins as fast as it can";
  const auto is_pinned_while_it_loads = [&](bool copies_bytes) {
    ProgramSet set;
    set.backend.device = Device::cuda;
    ProgramBuilder pb(set, "load");
    const Buffer x = buffer(pb, "x"), ring = buffer(pb, "ring", Tier::host);
    pb.emit("read", {.writes = {ring}, .lane = Lane::disk}, [](const Bindings&) {});
    bool pinned = true;  // then the emulated GPU writes to it
    pb.emit(
        "copy_out",
        {.reads = {ring}, .writes = {x, ring}, .lane = Lane::upload, .copies_bytes = copies_bytes},
        [&](const Bindings& b) {
          try {
            ops::copy({.from = b.out(x), .to = b.out(ring)}, b.stream());
          } catch (const Error&) {
            pinned = false;
          }
        });
    const MemoryPlan plan = plan_memory(set);
    ::setenv("BALLAST_EMULATED_PINNING", "300", 1);
    Runner runner(set, plan);
    runner.run("load");
    ::unsetenv("BALLAST_EMULATED_PINNING");
    return pinned;
  };
  EXPECT_TRUE(is_pinned_while_it_loads(false));
  // On a busy machine a run may begin when all is pinned: not time after time.
  bool always = true;
  for (int attempt = 0; attempt < 5 && always; ++attempt) always = is_pinned_while_it_loads(true);
  EXPECT_FALSE(always);
}

TEST_F(GpuOpeningTest, AnInstructionWaitsForItsOwnPreparationAndNotForLaterOnes) {
  ProgramBuilder pb(set_, "step");
  const Buffer x = buffer(pb, "x");
  std::promise<void> first_ran;
  bool ran_before_the_second_was_prepared = false, second_prepared = false, in_order = false;
  pb.emit(
      "first", {.writes = {x}}, [&](const Bindings&) { first_ran.set_value(); },
      [](const Bindings&) {});
  pb.emit(
      "second", {.reads = {x}}, [&](const Bindings&) { in_order = second_prepared; },
      [&](const Bindings&) {
        ran_before_the_second_was_prepared =
            first_ran.get_future().wait_for(std::chrono::seconds(20)) == std::future_status::ready;
        std::this_thread::sleep_for(std::chrono::milliseconds(500));
        second_prepared = true;
      });
  const MemoryPlan plan = plan_memory(set_);
  Runner runner(set_, plan);
  runner.run("step");
  EXPECT_TRUE(ran_before_the_second_was_prepared);
  EXPECT_TRUE(in_order);
  EXPECT_GT(runner.opening().waited, 0.05);
  EXPECT_GE(runner.opening().prepared, runner.opening().waited);
}

TEST_F(GpuOpeningTest, APreparationThatFailsEndsTheRunThatNeedsIt) {
  ProgramBuilder load(set_, "load");
  const Buffer x = buffer(load, "x");
  ops::fill(load, x, 1);
  ProgramBuilder step(set_, "step");
  step.emit(
      "product", {.writes = {x}}, [](const Bindings&) { ADD_FAILURE() << "nothing is prepared"; },
      [](const Bindings&) { fail(ErrorCode::device, "no such kernel"); });
  const MemoryPlan plan = plan_memory(set_);
  Runner runner(set_, plan);
  EXPECT_NO_THROW(runner.run("load"));  // has nothing to prepare
  for (int run = 0; run < 2; ++run) {
    try {
      runner.run("step");
      FAIL() << "it ran unprepared";
    } catch (const Error& e) {
      EXPECT_THAT(e.what(), ::testing::HasSubstr("no such kernel"));
      EXPECT_THAT(e.trail(), ::testing::Contains("preparing product of program step"));
    }
  }
}

}  // namespace
}  // namespace ballast::gpu_opening_test
