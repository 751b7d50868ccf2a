#include "report/plan_map.h"

#include <gtest/gtest.h>

#include "tests/plan/random_program.h"

namespace ballast::plan_map_test {
namespace {

MachineProfile some_machine() {
  return {.name = "some",
          .description = "",
          .gemm_flops = 1000,
          .attention_flops = 500,
          .attention_backward_flops = 250,
          .memory_bandwidth = 400,
          .upload_bandwidth = 100,
          .download_bandwidth = 50,
          .disk_bandwidth = 10,
          .launch_seconds = 0.25,
          .device_memory = {},
          .library_bytes = {}};
}

struct Case {
  explicit Case(std::uint32_t seed, int instructions = 60)
      : program(seed, instructions), plan(plan_memory(program.set)) {
    seconds = predict(program.set, plan, 0, some_machine(), &timeline).seconds;
    map = map_program(program.set, plan, 0, timeline);
  }
  RandomProgram program;
  MemoryPlan plan;
  Timeline timeline;
  double seconds = 0;
  ProgramMap map;
};

// All addresses that blocks cover, and the highest.
std::uint64_t top_of(const TierMap& tier) {
  std::uint64_t top = 0;
  for (const MapBlock& b : tier.blocks) top = std::max(top, b.offset + b.extent);
  return top;
}

TEST(PlanMap, HoldsWhatThePlanHoldsAtEveryInstruction) {
  for (std::uint32_t seed = 0; seed < 200; ++seed) {
    const Case c(seed);
    EXPECT_EQ(c.map.seconds, c.seconds) << seed;
    const auto life = lifetimes(c.program.set, 0);
    const auto& code = c.program.set.programs[0].instructions;
    ASSERT_EQ(c.map.bars.size(), code.size());
    for (const Tier t : kTiers) {
      const TierMap& tier = c.map.tiers[to_size(t)];
      EXPECT_EQ(top_of(tier), c.plan.peak_of(t).count) << seed;
      std::uint64_t most = 0;
      for (std::uint32_t i = 0; i < code.size(); ++i) {
        std::uint64_t planned = 0;
        for (std::uint32_t b = 0; b < c.program.set.buffers.size(); ++b) {
          const BufferSpec& s = c.program.set.buffers[b];
          if (s.root.id != b || s.tier != t) continue;
          const bool alive = s.program == kPersistent || (life[b].first <= i && i <= life[b].last);
          if (alive) planned += s.bytes;
        }
        std::uint64_t drawn = 0;
        std::vector<const MapBlock*> here;
        for (const MapBlock& b : tier.blocks) {
          if (b.first > i || b.last < i) continue;
          drawn += b.bytes;
          for (const MapBlock* other : here) {
            EXPECT_TRUE(b.offset >= other->offset + other->extent ||
                        other->offset >= b.offset + b.extent)
                << seed << " instruction " << i;
          }
          here.push_back(&b);
        }
        ASSERT_EQ(drawn, planned) << seed << " instruction " << i;
        most = std::max(most, drawn);
      }
      EXPECT_EQ(tier.live, most) << seed;
    }
  }
}

TEST(PlanMap, StaysBelowItsLimitsAndCoversWhatItJoined) {
  for (std::uint32_t seed = 0; seed < 20; ++seed) {
    const Case c(seed, 3000);
    ProgramMap small = c.map;
    simplify(small, 300, 100);
    std::size_t blocks = 0;
    for (const Tier t : kTiers) {
      const TierMap &before = c.map.tiers[to_size(t)], &after = small.tiers[to_size(t)];
      blocks += after.blocks.size();
      std::uint64_t buffers = after.hidden, all = 0;
      for (const MapBlock& b : after.blocks) buffers += b.count;
      for (const MapBlock& b : before.blocks) all += b.count;
      EXPECT_EQ(buffers, all) << "each buffer is drawn, joined or counted";
      EXPECT_EQ(after.live, before.live);
    }
    EXPECT_LE(blocks, 300u);
    EXPECT_LE(small.bars.size(), 100u);
    std::uint64_t instructions = 0;
    for (const MapBar& b : small.bars) instructions += b.count;
    EXPECT_EQ(instructions, c.map.bars.size());
  }
}

TEST(PlanMap, JoinsWhatStaysByModelPart) {
  ProgramSet set;
  ProgramBuilder pb(set, "step");
  const auto weight = [&](const char* name) {
    return pb.persistent(name, {256}, DType::u8, Role::weights);
  };
  const Buffer a = weight("blocks.0.q"), b = weight("blocks.0.k"), c = weight("blocks.1.q");
  pb.emit("use", {.reads = {a, b, c}}, [](const Bindings&) {});
  const MemoryPlan plan = plan_memory(set);
  const ProgramMap map = map_program(set, plan, 0, even_timeline(1));
  const auto& blocks = map.tiers[to_size(Tier::device)].blocks;
  ASSERT_EQ(blocks.size(), 2u);
  EXPECT_EQ(blocks[0].name, "blocks.0");
  EXPECT_EQ(blocks[0].count, 2u);
  EXPECT_EQ(blocks[0].bytes, 512u);
  EXPECT_EQ(blocks[1].name, "blocks.1.q");
  EXPECT_TRUE(blocks[1].stays);
}

}  // namespace
}  // namespace ballast::plan_map_test
