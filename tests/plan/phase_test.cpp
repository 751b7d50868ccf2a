#include "plan/phase.h"

#include <gtest/gtest.h>

#include "core/to_size.h"
#include "plan/memory_plan.h"
#include "plan/program_builder.h"
#include "plan/runner.h"
#include "tests/support/errors.h"

namespace ballast {
namespace {

constexpr auto kIdle = [](const Bindings&) {};

// A run of steps and two phases: each keeps something from its load to its use.
class PhasePlan : public testing::Test {
 protected:
  PhasePlan() {
    {
      ProgramBuilder step(set, "step");
      weights = step.persistent("weights", {512}, DType::u8, Role::weights);
      big = step.temp("big", {4096}, DType::u8);
      step.emit("fill", {.reads = {weights}, .writes = {big}}, fill(big, 0xEE));
    }
    const PhaseScope one(set);
    {
      ProgramBuilder load(set, "one.load");
      kept = load.persistent("kept", {1024}, DType::u8, Role::weights);
      load.emit("read", {.writes = {kept}}, fill(kept, 0x11));
    }
    ProgramBuilder use(set, "one.use");
    result = use.persistent("result", {256}, DType::u8, Role::output, Tier::host);
    const Buffer t = use.temp("t", {2048}, DType::u8);
    use.emit("work", {.reads = {kept}, .writes = {t}}, fill(t, 0x22));
    use.emit("copy", {.reads = {t, kept}, .writes = {result}},
             [this](const Bindings& b) { std::copy_n(b.in(kept).data, 256, b.out(result).data); });
    other_temp = t;
  }

  static Kernel fill(Buffer to, int value) {
    return [=](const Bindings& b) {
      const TensorView v = b.out(to);
      std::fill_n(v.data, v.bytes(), static_cast<std::byte>(value));
    };
  }

  ProgramSet set;
  Buffer weights, big, kept, result, other_temp;
};

TEST_F(PhasePlan, WhatAPhaseKeepsStandsWhereTemporariesOfOthersStand) {
  const MemoryPlan plan = plan_memory(set);
  EXPECT_EQ(plan.persistent[0].count, 512u);  // the phase adds nothing to what always stays
  EXPECT_EQ(plan.persistent[1].count, 0u);
  EXPECT_EQ(plan.offset[big.id], 512u);
  EXPECT_EQ(plan.offset[kept.id], 512u);
  EXPECT_EQ(plan.offset[other_temp.id], 512u + 1024);
  EXPECT_EQ(plan.peak_of(Tier::device).count, 512u + 4096);  // the step's, not the sum
  EXPECT_EQ(plan.programs[2].tier(Tier::device).peak.count, 512u + 1024 + 2048);
  EXPECT_EQ(plan.programs[2].tier(Tier::device).roles[to_size(Role::weights)].count, 512u + 1024);
  EXPECT_EQ(plan.programs[0].tier(Tier::device).roles[to_size(Role::weights)].count, 512u);
  EXPECT_EQ(plan.peak_of(Tier::host).count, 256u);
  EXPECT_EQ(live_bytes(set), plan.peak);
}

TEST_F(PhasePlan, ItsProgramsFindWhatTheFirstOfThemLeft) {
  set.backend.threads = 1;
  const MemoryPlan plan = plan_memory(set);
  Runner runner(set, plan);
  for (int again = 0; again < 2; ++again) {  // a step in between takes the place
    runner.run("step");
    runner.run("one.load");
    runner.run("one.use");
    const TensorView v = runner.view(result);
    for (std::uint64_t i = 0; i < v.bytes(); ++i) ASSERT_EQ(v.data[i], std::byte{0x11}) << i;
  }
  EXPECT_EQ(runner.high_water(Tier::device), plan.peak_of(Tier::device));
  EXPECT_EQ(runner.high_water(Tier::host), plan.peak_of(Tier::host));
}

TEST_F(PhasePlan, PhasesShareOnePlaceAndAreNotMixed) {
  Buffer second;
  {
    const PhaseScope two(set);
    ProgramBuilder load(set, "two.load");
    second = load.persistent("second", {8192}, DType::u8, Role::weights);
    load.emit("read", {.writes = {second}}, kIdle);
  }
  const MemoryPlan plan = plan_memory(set);
  EXPECT_EQ(plan.offset[second.id], plan.offset[kept.id]);
  EXPECT_EQ(plan.peak_of(Tier::device).count, 512u + 8192);
  ProgramBuilder wrong(set, "wrong");
  wrong.emit("both", {.reads = {kept, second}}, kIdle);
  EXPECT_FAILS(plan_memory(set), ErrorCode::internal, "which another phase keeps");
}

}  // namespace
}  // namespace ballast
