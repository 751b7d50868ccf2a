#include "plan/waits.h"

#include <gmock/gmock.h>

#include <cstring>

#include "core/to_size.h"
#include "plan/memory_plan.h"
#include "plan/runner.h"
#include "tests/plan/random_program.h"

namespace ballast {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

// Instructions on persistent buffers, which lie apart, unless a test says otherwise.
class WaitsTest : public testing::Test {
 protected:
  Buffer buffer(std::int64_t rows = 8) {
    return pb.persistent("b", {rows, 4}, DType::f32, Role::weights);
  }
  void emit(Lane lane, std::vector<Buffer> reads, std::vector<Buffer> writes) {
    pb.emit("i", {.reads = std::move(reads), .writes = std::move(writes), .lane = lane},
            [](const Bindings&) {});
  }
  std::vector<Wait> of(std::size_t instruction) const {
    const MemoryPlan plan = plan_memory(set);
    const Waits& w = plan.waits.at(0);
    return {w.all.begin() + w.begin.at(instruction), w.all.begin() + w.begin.at(instruction + 1)};
  }

  ProgramSet set;
  ProgramBuilder pb{set, "p"};
};

TEST_F(WaitsTest, AReadWaitsForTheWriteOnAnotherLane) {
  const Buffer a = buffer();
  emit(Lane::disk, {}, {a});
  emit(Lane::disk, {}, {a});
  emit(Lane::upload, {a}, {});
  EXPECT_THAT(of(0), IsEmpty());
  EXPECT_THAT(of(1), IsEmpty());
  EXPECT_THAT(of(2), ElementsAre(Wait{Lane::disk, 2}));
}

TEST_F(WaitsTest, AWriteWaitsForEveryReaderSinceTheLastWrite) {
  const Buffer a = buffer();
  emit(Lane::compute, {a}, {});
  emit(Lane::download, {a}, {});
  emit(Lane::compute, {a}, {});
  emit(Lane::compute, {}, {});
  emit(Lane::upload, {}, {a});
  EXPECT_THAT(of(4), UnorderedElementsAre(Wait{Lane::compute, 2}, Wait{Lane::download, 1}));
}

TEST_F(WaitsTest, PlacesOnDiskAreOrderedLikeMemory) {
  const Buffer a = pb.persistent("a", {8192}, DType::u8, Role::optimizer, Tier::disk, 4096);
  const Buffer first = pb.rows(a, 0, 4096), second = pb.rows(a, 4096, 4096);
  emit(Lane::disk, {first}, {});
  emit(Lane::disk, {}, {first});
  emit(Lane::host, {second}, {});  // another place
  emit(Lane::host, {first}, {});
  EXPECT_THAT(of(1), IsEmpty());
  EXPECT_THAT(of(2), IsEmpty());
  EXPECT_THAT(of(3), ElementsAre(Wait{Lane::disk, 2}));
}

TEST_F(WaitsTest, AWriteWaitsForTheWriteBefore) {
  const Buffer a = buffer();
  emit(Lane::host, {}, {a});
  emit(Lane::compute, {}, {a});
  EXPECT_THAT(of(1), ElementsAre(Wait{Lane::host, 1}));
}

// Bytes that came from other ranks are used when they are there; those that go to them stay until
// they are gone.
TEST_F(WaitsTest, ExchangesAreOrderedLikeAnyOtherLane) {
  const Buffer mine = buffer(), all = buffer();
  emit(Lane::compute, {}, {mine});
  emit(Lane::network, {mine}, {all});
  emit(Lane::compute, {all}, {});
  emit(Lane::compute, {}, {mine});
  emit(Lane::network, {mine}, {all});
  EXPECT_THAT(of(1), ElementsAre(Wait{Lane::compute, 1}));
  EXPECT_THAT(of(2), ElementsAre(Wait{Lane::network, 1}));
  EXPECT_THAT(of(3), IsEmpty());  // the same wait
  EXPECT_THAT(of(4), ElementsAre(Wait{Lane::compute, 3}));
}

TEST_F(WaitsTest, OneLaneNeverWaitsForItself) {
  const Buffer a = buffer();
  emit(Lane::compute, {}, {a});
  emit(Lane::compute, {a}, {a});
  emit(Lane::compute, {}, {a});
  for (const std::size_t i : {0u, 1u, 2u}) EXPECT_THAT(of(i), IsEmpty());
}

TEST_F(WaitsTest, ReadersDoNotWaitForEachOther) {
  const Buffer a = buffer();
  emit(Lane::compute, {a}, {});
  emit(Lane::upload, {a}, {});
  emit(Lane::download, {a}, {});
  for (const std::size_t i : {0u, 1u, 2u}) EXPECT_THAT(of(i), IsEmpty());
}

TEST_F(WaitsTest, OnlyBytesThatOverlapCount) {
  const Buffer a = buffer(), b = buffer();
  emit(Lane::upload, {}, {pb.rows(a, 0, 4)});
  emit(Lane::upload, {}, {pb.rows(a, 4, 4)});
  emit(Lane::compute, {pb.rows(a, 0, 4), b}, {});
  emit(Lane::host, {pb.rows(a, 3, 2)}, {});
  emit(Lane::download, {b}, {});
  EXPECT_THAT(of(2), ElementsAre(Wait{Lane::upload, 1}));
  EXPECT_THAT(of(3), ElementsAre(Wait{Lane::upload, 2}));
  EXPECT_THAT(of(4), IsEmpty());
}

TEST_F(WaitsTest, TheSameOffsetInAnotherTierIsOtherMemory) {
  const Buffer a = buffer();
  const Buffer h = pb.persistent("h", {8, 4}, DType::f32, Role::staging, Tier::host);
  emit(Lane::disk, {}, {h});
  emit(Lane::compute, {}, {a});
  ASSERT_EQ(plan_memory(set).offset[a.id], plan_memory(set).offset[h.id]);
  EXPECT_THAT(of(1), IsEmpty());
}

TEST_F(WaitsTest, WhatTheLaneAlreadyWaitedForIsNotRepeated) {
  const Buffer a = buffer(), b = buffer();
  emit(Lane::upload, {}, {a});
  emit(Lane::upload, {}, {b});
  emit(Lane::compute, {b}, {});
  emit(Lane::compute, {a}, {});  // upload is past that since the instruction before
  emit(Lane::download, {a}, {});
  EXPECT_THAT(of(2), ElementsAre(Wait{Lane::upload, 2}));
  EXPECT_THAT(of(3), IsEmpty());
  EXPECT_THAT(of(4), ElementsAre(Wait{Lane::upload, 1}));  // another lane has not waited yet
}

TEST_F(WaitsTest, ReuseOfPackedBytesIsOrdered) {
  const Buffer a = pb.temp("a", {64}, DType::f32), b = pb.temp("b", {64}, DType::f32);
  emit(Lane::compute, {}, {a});
  emit(Lane::download, {a}, {});
  emit(Lane::upload, {}, {b});  // nothing but the place connects it with a
  const MemoryPlan plan = plan_memory(set);
  ASSERT_EQ(plan.offset[a.id], plan.offset[b.id]);
  EXPECT_THAT(of(2), UnorderedElementsAre(Wait{Lane::download, 1}, Wait{Lane::compute, 1}));
}

TEST_F(WaitsTest, ABufferNamedWholeAndInPartIsOneWrite) {
  const Buffer a = buffer();
  emit(Lane::compute, {}, {a, pb.rows(a, 2, 2)});
  emit(Lane::upload, {}, {pb.rows(a, 2, 2)});
  emit(Lane::download, {a}, {});
  EXPECT_THAT(of(2), UnorderedElementsAre(Wait{Lane::compute, 1}, Wait{Lane::upload, 1}));
}

// By brute force over all pairs and all bytes: every conflict is ordered by lanes and waits
// together, and every wait is for an instruction that is in conflict.
TEST(WaitsProperty, OrderExactlyTheConflicts) {
  for (std::uint32_t seed = 0; seed < 200; ++seed) {
    RandomProgram program(seed, 40);
    const MemoryPlan plan = plan_memory(program.set);
    const auto& code = program.set.programs[0].instructions;
    const Waits& waits = plan.waits[0];
    const auto overlap = [&](const BufferList& a, const BufferList& b) {
      for (const Buffer x : a) {
        for (const Buffer y : b) {
          const BufferSpec &s = program.set.spec(x), &t = program.set.spec(y);
          const std::uint64_t at = plan.offset[s.root.id] + s.offset;
          const std::uint64_t bt = plan.offset[t.root.id] + t.offset;
          if (s.tier == t.tier && at < bt + t.bytes && bt < at + s.bytes) return true;
        }
      }
      return false;
    };
    const auto conflict = [&](const Instruction& a, const Instruction& b) {
      return overlap(a.writes, b.writes) || overlap(a.writes, b.reads) ||
             overlap(a.reads, b.writes);
    };
    std::vector<std::vector<bool>> before(code.size(), std::vector<bool>(code.size()));
    std::array<std::vector<std::size_t>, kLaneCount> lanes;
    for (std::size_t j = 0; j < code.size(); ++j) {
      const auto follow = [&](std::size_t i) {
        before[j][i] = true;
        for (std::size_t k = 0; k < i; ++k) before[j][k] = before[j][k] || before[i][k];
      };
      auto& lane = lanes[to_size(code[j].lane)];
      if (!lane.empty()) follow(lane.back());
      for (std::uint32_t w = waits.begin[j]; w < waits.begin[j + 1]; ++w) {
        const Wait& wait = waits.all[w];
        const auto& other = lanes[to_size(wait.lane)];
        ASSERT_NE(wait.lane, code[j].lane);
        ASSERT_LE(wait.count, other.size()) << "waits for what is recorded later";
        ASSERT_GE(wait.count, 1u);
        const std::size_t i = other[wait.count - 1];
        EXPECT_TRUE(conflict(code[i], code[j])) << "seed " << seed << ": " << i << ", " << j;
        follow(i);
      }
      lane.push_back(j);
      for (std::size_t i = 0; i < j; ++i) {
        ASSERT_TRUE(before[j][i] || !conflict(code[i], code[j]))
            << "seed " << seed << ": " << j << " does not wait for " << i;
      }
    }
  }
}

std::vector<std::uint32_t> results(RandomProgram& program, const RunnerDebug& debug) {
  const MemoryPlan plan = plan_memory(program.set);
  Runner runner(program.set, plan, {.disk_readers = 1, .debug = debug});
  runner.run("random");
  std::vector<std::uint32_t> all;
  for (const Buffer b : program.results) {
    const TensorView v = runner.view(b);
    all.insert(all.end(), v.as<std::uint32_t>(), v.as<std::uint32_t>() + v.elements());
  }
  return all;
}

TEST(WaitsProperty, EveryLegalOrderGivesTheRecordedResults) {
  for (std::uint32_t seed = 0; seed < 60; ++seed) {
    RandomProgram program(seed);
    const auto expected = results(program, {.order = Order::recorded});
    EXPECT_EQ(results(program, {.order = Order::recorded, .poison = true}), expected) << seed;
    for (std::uint32_t order = 0; order < 10; ++order) {
      EXPECT_EQ(results(program, {.order = Order::random, .random_seed = order}), expected)
          << "program " << seed << ", order " << order;
      EXPECT_EQ(results(program, {.order = Order::random, .random_seed = order, .poison = true}),
                expected)
          << "program " << seed << ", order " << order << ", poisoned";
    }
    EXPECT_EQ(results(program, {.order = Order::concurrent}), expected) << seed;
  }
}

TEST(WaitsProperty, WithoutWaitsTheResultsDiffer) {
  int different = 0;
  for (std::uint32_t seed = 0; seed < 20; ++seed) {
    RandomProgram program(seed);
    const auto expected = results(program, {.order = Order::recorded});
    different +=
        results(program, {.order = Order::random, .random_seed = seed, .ignore_waits = true}) !=
        expected;
  }
  EXPECT_GT(different, 10);
}

}  // namespace
}  // namespace ballast
