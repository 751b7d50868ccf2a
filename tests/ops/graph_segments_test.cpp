// What a GPU's compute lane is given by recordings does what instructions given one by one do. The
// instructions are operations: layers above the plan, which its own tests do not know.

#include "plan/graph_segments.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <thread>
#include <vector>

#include "core/to_size.h"
#include "ops/copy.h"
#include "ops/global_norm.h"
#include "ops/noise.h"
#include "plan/runner.h"
#include "tests/support/test_device.h"

namespace ballast::graph_segments_test {
namespace {

constexpr std::int64_t kSize = 40;
constexpr int kMany = static_cast<int>(GraphSegments::kShortest) + 4;
using Values = std::vector<float>;

class GraphSegmentsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (support::test_device() != Device::cuda) GTEST_SKIP() << "there is nothing to record";
    set_.backend.device = Device::cuda;
  }
  void make_runner() {
    plan_ = plan_memory(set_);
    runner_ = std::make_unique<Runner>(set_, plan_);
  }
  Buffer device(ProgramBuilder& pb, const char* name, std::int64_t n = kSize) {
    return pb.persistent(name, {n}, DType::f32, Role::output);
  }
  void write(Buffer b, const Values& v) { runner_->write(b, std::as_bytes(std::span(v))); }
  Values read(Buffer b) {
    Values v(to_size(set_.spec(b).shape.elements()));
    runner_->read(b, std::as_writable_bytes(std::span(v)));
    return v;
  }

  ProgramSet set_;
  MemoryPlan plan_;
  std::unique_ptr<Runner> runner_;
};

TEST_F(GraphSegmentsTest, RepeatWhatTheFirstRunDid) {
  ProgramBuilder pb(set_, "p");
  const Buffer x = device(pb, "x"), two = device(pb, "two", 1);
  for (int i = 0; i < kMany; ++i) ops::scale_by(pb, two, x);
  make_runner();
  write(x, Values(kSize, 1));
  write(two, {2});
  float expected = 1;
  for (int run = 0; run < 4; ++run) {
    runner_->run("p");
    for (int i = 0; i < kMany; ++i) expected *= 2;
    EXPECT_EQ(read(x), Values(kSize, expected)) << run;
    EXPECT_EQ(runner_->repeated_instructions(0), run == 0 ? 0u : static_cast<std::uint32_t>(kMany));
  }
}

// What the queue idles for while its own thread waits for the disk counts as well.
TEST_F(GraphSegmentsTest, TheStallBeginsWhenTheGpuHasNothingLeftToDo) {
  ProgramBuilder pb(set_, "p");
  const Buffer from = pb.persistent("from", {kSize}, DType::f32, Role::input, Tier::host);
  const Buffer x = device(pb, "x"), two = device(pb, "two", 1);
  pb.emit("read", {.writes = {from}, .lane = Lane::disk}, [from](const Bindings& b) {
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    std::fill_n(b.out(from).as<float>(), kSize, 3.0f);
  });
  ops::copy(pb, from, x, Lane::upload);
  ops::scale_by(pb, two, x);
  make_runner();
  write(two, {2});
  runner_->run("p");
  EXPECT_EQ(read(x), Values(kSize, 6));
  EXPECT_GT(runner_->lane_times()[to_size(Lane::compute)].waiting, 0.1);
}

TEST_F(GraphSegmentsTest, LeaveOutWhatAsksForTheStep) {
  ProgramBuilder pb(set_, "p");
  const Buffer x = device(pb, "x"), one = device(pb, "one", 1);
  for (int i = 0; i < kMany; ++i) ops::scale_by(pb, one, x);
  ops::noise(pb, x, ops::random_site("noise", "x", 0));
  for (int i = 0; i < kMany; ++i) ops::scale_by(pb, one, x);
  make_runner();
  write(one, {1});
  const auto values = [&](std::int64_t step, bool one_by_one) {
    runner_->time_instructions(one_by_one);
    runner_->run("p", {.step = step, .seed = 3});
    return read(x);
  };
  std::vector<Values> repeated;
  for (std::int64_t step = 0; step < 4; ++step) repeated.push_back(values(step, false));
  EXPECT_EQ(runner_->repeated_instructions(0), 2u * kMany);
  for (std::int64_t step = 0; step < 4; ++step) {
    EXPECT_EQ(repeated[to_size(step)], values(step, true));
    EXPECT_NE(repeated[to_size(step)], repeated[to_size((step + 1) % 4)]);
  }
}

// Host memory changes between runs, and copies of it are other lanes' work.
TEST_F(GraphSegmentsTest, EndWhereOtherLanesComeIn) {
  ProgramBuilder pb(set_, "p");
  const auto host = [&](const char* name) {
    return pb.persistent(name, {kSize}, DType::f32, Role::input, Tier::host);
  };
  const Buffer in = host("in"), out = host("out"), direct = host("direct");
  const Buffer x = device(pb, "x"), y = device(pb, "y"), two = device(pb, "two", 1);
  ops::copy(pb, in, x, Lane::upload);
  for (int i = 0; i < kMany; ++i) ops::scale_by(pb, two, x);
  ops::copy(pb, x, out, Lane::download);
  for (int i = 0; i < kMany; ++i) ops::scale_by(pb, two, x);  // waits for the copy
  ops::copy(pb, direct, y);                                   // on the compute lane, of host memory
  for (int i = 0; i < kMany; ++i) ops::scale_by(pb, two, y);
  make_runner();
  write(two, {2});
  const auto power = static_cast<float>(1 << kMany);
  for (int run = 1; run <= 4; ++run) {
    const auto first = static_cast<float>(run);
    write(in, Values(kSize, first));
    write(direct, Values(kSize, -first));
    runner_->run("p");
    EXPECT_EQ(read(out), Values(kSize, first * power));
    EXPECT_EQ(read(x), Values(kSize, first * power * power));
    EXPECT_EQ(read(y), Values(kSize, -first * power));
  }
  EXPECT_EQ(runner_->repeated_instructions(0), 3u * kMany);
}

// A launch of a recording takes memory: a program of few instructions may have many.
TEST_F(GraphSegmentsTest, AreNotMadeOfTooManyLaunches) {
  for (const std::uint32_t launches : {GraphSegments::kMax / kMany, GraphSegments::kMax}) {
    ProgramSet set;
    set.backend = set_.backend;
    ProgramBuilder pb(set, "p");
    const Buffer x = pb.persistent("x", {1}, DType::f32, Role::output);
    for (int i = 0; i < kMany; ++i) {
      pb.emit("many", {.reads = {x}, .writes = {x}, .cost = {.launches = launches}},
              [=](const Bindings& b) {
                ops::scale_by({.factor = b.in(x), .x = b.out(x)}, b.stream());
              });
    }
    const MemoryPlan plan = plan_memory(set);
    Runner runner(set, plan);
    for (int run = 0; run < 2; ++run) runner.run("p");
    EXPECT_EQ(runner.repeated_instructions(0),
              launches < GraphSegments::kMax ? static_cast<std::uint32_t>(kMany) : 0u);
  }
}

TEST_F(GraphSegmentsTest, AreNotMadeOfFewInstructions) {
  ProgramBuilder pb(set_, "p");
  const Buffer x = device(pb, "x"), two = device(pb, "two", 1);
  for (std::uint32_t i = 0; i + 1 < GraphSegments::kShortest; ++i) ops::scale_by(pb, two, x);
  make_runner();
  for (int run = 0; run < 3; ++run) runner_->run("p");
  EXPECT_EQ(runner_->repeated_instructions(0), 0u);
}

}  // namespace
}  // namespace ballast::graph_segments_test
