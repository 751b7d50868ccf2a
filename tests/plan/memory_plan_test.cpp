#include "plan/memory_plan.h"

#include <gtest/gtest.h>

#include <numeric>

#include "core/to_size.h"
#include "plan/program_builder.h"
#include "tests/plan/random_program.h"

namespace ballast {
namespace {

constexpr auto kNothing = [](const Bindings&) {};

Buffer bytes(ProgramBuilder& pb, std::int64_t n, Role role = Role::activation,
             Tier tier = Tier::device) {
  return pb.temp("t" + std::to_string(n), {n}, DType::u8, role, tier);
}

std::uint64_t role_bytes(const TierUse& use, Role r) { return use.roles[to_size(r)].count; }

std::uint64_t sum(const BytesByRole& roles) {
  return std::accumulate(roles.begin(), roles.end(), Bytes{}).count;
}

// weights 1000 + 24 padding + inputs 512 | a 768 | b 256, then c 512 over a: device.
// staging 4096 | d 100: host.
class HandPlanned : public testing::Test {
 protected:
  HandPlanned() {
    ProgramBuilder step(set, "step");
    weights = step.persistent("weights", {1000}, DType::u8, Role::weights);
    input = step.persistent("input", {512}, DType::u8, Role::input);
    staging = step.persistent("staging", {4096}, DType::u8, Role::staging, Tier::host, 4096);
    a = bytes(step, 768);
    b = bytes(step, 256, Role::checkpoint);
    c = bytes(step, 512);
    d = bytes(step, 100, Role::output, Tier::host);
    step.emit("make_a", {.reads = {weights}, .writes = {a}}, kNothing);
    step.emit("make_b", {.reads = {a}, .writes = {b}}, kNothing);
    step.emit("make_c", {.reads = {b, input}, .writes = {c}}, kNothing);
    step.emit("make_d", {.reads = {c, staging}, .writes = {d}, .lane = Lane::download}, kNothing);
  }

  ProgramSet set;
  Buffer weights, input, staging, a, b, c, d;
};

TEST_F(HandPlanned, PeaksAreRightToTheByte) {
  const MemoryPlan plan = plan_memory(set);
  EXPECT_EQ(plan.persistent[0].count, 1536u);
  EXPECT_EQ(plan.offset[weights.id], 0u);
  EXPECT_EQ(plan.offset[input.id], 1024u);
  EXPECT_EQ(plan.offset[a.id], 1536u);
  EXPECT_EQ(plan.offset[b.id], 1536u + 768);
  EXPECT_EQ(plan.offset[c.id], 1536u);
  EXPECT_EQ(plan.peak_of(Tier::device).count, 1536u + 768 + 256);
  EXPECT_EQ(plan.persistent[1].count, 4096u);
  EXPECT_EQ(plan.offset[d.id], 4096u);
  EXPECT_EQ(plan.peak_of(Tier::host).count, 4096u + 100);
  EXPECT_EQ(plan.peak_of(Tier::disk).count, 0u);
}

TEST_F(HandPlanned, TheFullestInstructionIsNamedAndItsRolesAddUp) {
  const MemoryPlan plan = plan_memory(set);
  const TierUse& device = plan.programs.at(0).tier(Tier::device);
  EXPECT_EQ(device.at, "make_b");
  EXPECT_EQ(role_bytes(device, Role::weights), 1000u);
  EXPECT_EQ(role_bytes(device, Role::input), 512u);
  EXPECT_EQ(role_bytes(device, Role::activation), 768u);
  EXPECT_EQ(role_bytes(device, Role::checkpoint), 256u);
  EXPECT_EQ(sum(device.roles) + 24, device.peak.count);  // padding behind the weights
  EXPECT_EQ(device.lower_bound, device.peak);
  const TierUse& host = plan.programs.at(0).tier(Tier::host);
  EXPECT_EQ(host.at, "make_d");
  EXPECT_EQ(role_bytes(host, Role::staging), 4096u);
  EXPECT_EQ(role_bytes(host, Role::output), 100u);
  EXPECT_EQ(sum(host.roles), host.peak.count);
}

TEST_F(HandPlanned, TemporariesOfProgramsShareOneRegion) {
  ProgramBuilder update(set, "update");
  const Buffer e = bytes(update, 1500, Role::workspace);
  update.emit("use_e", {.reads = {weights}, .writes = {e}}, kNothing);
  const MemoryPlan plan = plan_memory(set);
  EXPECT_EQ(plan.offset[weights.id], 0u);
  EXPECT_EQ(plan.offset[e.id], plan.offset[a.id]);
  EXPECT_EQ(plan.programs[0].tier(Tier::device).peak.count, 1536u + 1024);
  EXPECT_EQ(plan.programs[1].tier(Tier::device).peak.count, 1536u + 1500);
  EXPECT_EQ(plan.peak_of(Tier::device).count, 1536u + 1500);  // the larger, not both
  EXPECT_EQ(plan.programs[1].tier(Tier::host).peak.count, 4096u);
}

TEST_F(HandPlanned, PersistentBuffersOfLaterProgramsLieBelowAllTemporaries) {
  ProgramBuilder update(set, "update");
  const Buffer moments = update.persistent("m", {256}, DType::u8, Role::optimizer);
  update.emit("adamw", {.reads = {moments}, .writes = {moments}}, kNothing);
  const MemoryPlan plan = plan_memory(set);
  EXPECT_EQ(plan.persistent[0].count, 1536u + 256);
  EXPECT_EQ(plan.offset[moments.id], 1536u);
  EXPECT_EQ(plan.offset[a.id], 1536u + 256);  // step's temporaries keep clear of it
  EXPECT_EQ(role_bytes(plan.programs[0].tier(Tier::device), Role::optimizer), 256u);
}

TEST_F(HandPlanned, GuardBytesStandBehindEveryBuffer) {
  const MemoryPlan plan = plan_memory(set, {.guard_bytes = 64});
  EXPECT_EQ(plan.guard_bytes, 64u);
  EXPECT_EQ(plan.offset[input.id], 1280u);  // 1000 + 64, aligned to 256
  EXPECT_EQ(plan.persistent[0].count, 1280u + 512 + 64);
  EXPECT_EQ(plan.offset[a.id], 2048u);
  EXPECT_EQ(plan.offset[b.id], 2048u + 1024);  // 768 + 64, aligned
  EXPECT_EQ(plan.peak_of(Tier::device).count, 2048u + 1024 + 256 + 64);
}

TEST_F(HandPlanned, LiveBytesAreKnownWithoutPacking) {
  EXPECT_EQ(live_bytes(set)[0].count, 1536u + 1024);
  EXPECT_EQ(live_bytes(set)[1].count, 4196u);
}

TEST(MemoryPlan, WideAlignmentsHoldInTheArena) {
  ProgramSet set;
  ProgramBuilder pb(set, "p");
  pb.persistent("odd", {3}, DType::u8, Role::weights, Tier::host, 1);
  const Buffer page = pb.temp("page", {5000}, DType::u8, Role::staging, Tier::host, 4096);
  const Buffer ring = pb.persistent("ring", {100}, DType::u8, Role::staging, Tier::host, 4096);
  pb.emit("i", {.writes = {page}}, kNothing);
  const MemoryPlan plan = plan_memory(set);
  EXPECT_EQ(plan.offset[ring.id], 0u);  // widest first
  EXPECT_EQ(plan.persistent[1].count, 103u);
  EXPECT_EQ(plan.offset[page.id], 4096u);
  EXPECT_EQ(plan.peak_of(Tier::host).count, 4096u + 5000);
}

TEST(MemoryPlan, WhatIsNeverTouchedOrEmptyTakesNoTemporaryPlace) {
  ProgramSet set;
  ProgramBuilder pb(set, "p");
  bytes(pb, 1 << 20);
  const Buffer empty = bytes(pb, 0), x = bytes(pb, 512);
  pb.emit("i", {.writes = {empty, x}}, kNothing);
  EXPECT_EQ(plan_memory(set).peak_of(Tier::device).count, 512u);
  EXPECT_EQ(plan_memory(set, {.guard_bytes = 256}).peak_of(Tier::device).count, 768u);
}

TEST(MemoryPlan, LiveBytesNeverExceedThePeak) {
  for (std::uint32_t seed = 0; seed < 100; ++seed) {
    const RandomProgram program(seed);
    const MemoryPlan plan = plan_memory(program.set);
    const auto live = live_bytes(program.set);
    for (const Tier t : kTiers) {
      const TierUse& use = plan.programs[0].tier(t);
      EXPECT_LE(live[to_size(t)], plan.peak_of(t)) << seed;
      EXPECT_LE(use.lower_bound, use.peak);
      EXPECT_EQ(plan.peak_of(t), std::max(use.peak, plan.persistent[to_size(t)]));
    }
  }
}

}  // namespace
}  // namespace ballast
