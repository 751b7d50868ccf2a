#include "ops/collective.h"

#include <gmock/gmock.h>

#include <atomic>
#include <cmath>

#include "core/to_size.h"
#include "dist/thread_ranks.h"
#include "plan/runner.h"
#include "tests/dist/run_ranks.h"
#include "tests/ref/collective.h"
#include "tests/support/errors.h"
#include "tests/support/recorded_program.h"

namespace ballast::ops::collective_test {
namespace {

using support::RecordedProgram;
using support::SampleTensor;
using testing::ElementsAre;
using testing::IsEmpty;

std::vector<ColumnRange> single_columns(std::int64_t count) {
  std::vector<ColumnRange> all;
  for (std::int64_t c = 0; c < count; ++c) all.push_back({c, 1});
  return all;
}

using SumCase = std::tuple<Shape, DType, ReductionColumns>;
class TreeSumOnDevice : public testing::TestWithParam<SumCase> {};

TEST_P(TreeSumOnDevice, MatchesReference) {
  const auto& [shape, dtype, columns] = GetParam();
  RecordedProgram p;
  std::vector<SampleTensor> values;
  std::vector<Buffer> pieces;
  for (std::int64_t c = 0; c < columns.columns; ++c) {
    values.push_back(SampleTensor(dtype, shape).fill_normal(static_cast<std::uint32_t>(c) + 1));
    pieces.push_back(p.input(fmt::format("piece{}", c), values.back()));
  }
  tree_sum(p.pb, columns, single_columns(columns.columns), pieces);
  EXPECT_EQ(p.instructions(), to_size(columns.columns - 1));
  p.run();
  const SampleTensor got = p.value(pieces[0]);
  for (std::int64_t i = 0; i < got.size(); ++i) {
    std::vector<std::optional<double>> terms;
    double size = 0;
    for (const SampleTensor& v : values) {
      terms.emplace_back(v[i]);
      size += std::abs(v[i]);
    }
    // An element goes through one sum on each level of the tree, each rounded to f32 and to the
    // dtype.
    const double levels = std::ceil(std::log2(static_cast<double>(columns.columns))) + 1;
    EXPECT_NEAR(got[i], *ref::tree_sum<double>(columns, terms),
                size * levels * (0x1p-24 + 1.01 * support::rounding(dtype)));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, TreeSumOnDevice,
    testing::Combine(testing::Values(Shape{7, 33}, Shape{1, 1}, Shape{0, 5}, Shape{3, 20000}),
                     testing::Values(DType::f32, DType::bf16),
                     testing::Values(ReductionColumns{1, 1}, ReductionColumns{2, 2},
                                     ReductionColumns{5, 5}, ReductionColumns{8, 4},
                                     ReductionColumns{7, 3})));

// However columns are dealt out: f32 sums by the definition, to the bit.
TEST(TreeSumBits, DoNotDependOnWhoAddsWhat) {
  const ReductionColumns shape = {6, 4};
  const std::int64_t samples = 4;  // columns 2 and 5 are empty
  std::vector<std::optional<SampleTensor>> values(6);
  for (std::int64_t i = 0; i < samples; ++i) {
    values[to_size(shape.column_of(i, samples))] =
        SampleTensor(DType::f32, {500}).fill_normal(static_cast<std::uint32_t>(i) + 1);
  }
  for (std::int64_t ranks = 1; ranks <= 6; ++ranks) {
    RecordedProgram p;
    std::vector<ColumnRange> sent;
    std::vector<Buffer> pieces;
    for (std::int64_t r = 0; r < ranks; ++r) {
      for (const ColumnRange& subtree : shape.subtrees(shape.of_rank(r, ranks), samples)) {
        std::vector<ColumnRange> own;
        std::vector<Buffer> own_pieces;
        for (std::int64_t c = subtree.first; c < subtree.end(); ++c) {
          if (!values[to_size(c)]) continue;
          own.push_back({c, 1});
          own_pieces.push_back(p.input(fmt::format("column{}", c), *values[to_size(c)]));
        }
        tree_sum(p.pb, shape, own, own_pieces);
        sent.push_back(subtree);
        pieces.push_back(own_pieces.at(0));
      }
    }
    tree_sum(p.pb, shape, sent, pieces);
    p.run();
    const SampleTensor got = p.value(pieces[0]);
    for (std::int64_t i = 0; i < got.size(); ++i) {
      std::vector<std::optional<float>> terms;
      for (const auto& v : values) {
        terms.push_back(v ? std::optional(static_cast<float>((*v)[i])) : std::nullopt);
      }
      ASSERT_EQ(static_cast<float>(got[i]), *ref::tree_sum<float>(shape, terms)) << ranks;
    }
  }
}

TEST(TreeSumChecks, RefusePiecesWithoutASubtree) {
  RecordedProgram p;
  const Buffer x = p.input("x", SampleTensor(DType::f32, {2}));
  const std::vector<Buffer> pieces = {x};
  EXPECT_FAILS(tree_sum(p.pb, {2, 2}, single_columns(2), pieces), ErrorCode::internal,
               "1 pieces for 2 subtrees");
}

struct Ranks {
  explicit Ranks(int size, int mine = 0) {
    set.groups = {{.name = "all", .size = size, .mine = mine}};
  }
  const std::vector<Instruction>& code() const { return set.programs[0].instructions; }

  ProgramSet set;
  ProgramBuilder pb{set, "exchange"};
};

TEST(CollectiveRecorded, AnExchangeIsOneInstructionOnTheNetworkLane) {
  Ranks r(4);
  const Buffer mine = r.pb.persistent("mine", {3, 5}, DType::bf16, Role::gradient);
  const Buffer all = r.pb.persistent("all", {4, 3, 5}, DType::bf16, Role::gradient);
  const Buffer other = r.pb.persistent("other", {4, 15}, DType::bf16, Role::gradient);
  all_gather(r.pb, 0, mine, all);
  all_to_all(r.pb, 0, all, other);
  broadcast(r.pb, 0, 2, mine);
  barrier(r.pb, 0, {mine}, {all});
  ASSERT_EQ(r.code().size(), 4u);
  const double received[] = {3 * 30, 3 * 30, 30, 0};
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(r.code()[i].lane, Lane::network);
    EXPECT_EQ(r.code()[i].cost.work, Work::network);
    EXPECT_EQ(r.code()[i].cost.group, 0);
    EXPECT_EQ(r.code()[i].cost.bytes, received[i]);
  }
  const auto root = [&](Buffer b) { return r.set.spec(b).root; };
  EXPECT_EQ(root(r.code()[0].reads[0]), mine);
  EXPECT_EQ(root(r.code()[0].writes[0]), all);
  EXPECT_EQ(root(r.code()[1].reads[0]), all);
  EXPECT_EQ(root(r.code()[1].writes[0]), other);
  EXPECT_EQ(root(r.code()[2].writes[0]), mine);
  EXPECT_THAT(r.code()[3].reads, ElementsAre(mine));
  EXPECT_THAT(r.code()[3].writes, ElementsAre(all));
}

TEST(CollectiveRecorded, LargeExchangesAreCut) {
  Ranks r(4);
  constexpr std::int64_t kMany = 50'000'000;
  const Buffer to = r.pb.persistent("to", {4, kMany}, DType::u8, Role::gradient);
  const Buffer from = r.pb.persistent("from", {4, kMany}, DType::u8, Role::gradient);
  all_to_all(r.pb, 0, to, from);
  double received = 0;
  for (const Instruction& i : r.code()) {
    EXPECT_LE(i.cost.bytes, kMaxExchange);
    received += i.cost.bytes;
  }
  EXPECT_EQ(r.code().size(), 3u);
  EXPECT_EQ(received, 3.0 * kMany);
}

TEST(CollectiveRecorded, RefusesWhatDoesNotFit) {
  Ranks r(3);
  const Buffer mine = r.pb.persistent("mine", {4}, DType::f32, Role::gradient);
  const Buffer all = r.pb.persistent("all", {4, 4}, DType::f32, Role::gradient);
  const Buffer more = r.pb.persistent("more", {3, 5}, DType::f32, Role::gradient);
  EXPECT_FAILS(all_gather(r.pb, 0, mine, all), ErrorCode::internal, "has no 3 rows");
  EXPECT_FAILS(all_gather(r.pb, 0, mine, more), ErrorCode::internal, "rows of 4 f32");
  EXPECT_FAILS(all_gather(r.pb, 1, mine, more), ErrorCode::internal, "group 1 of 1");
  EXPECT_FAILS(broadcast(r.pb, 0, 3, mine), ErrorCode::internal, "rank 3 of 3");
}

// What a step of data parallel training does with one bucket: every rank adds up the columns it
// holds, sends each rank its part, adds up what came, and gathers the sums of all parts.
struct BucketProgram {
  BucketProgram(const ReductionColumns& shape, int rank, int ranks, int width) {
    set.groups = {{.name = "dp", .size = ranks, .mine = rank}};
    ProgramBuilder pb(set, "step");
    result = pb.persistent("result", {ranks, width / ranks}, DType::f32, Role::gradient);
    const auto sent_by = [&](int r) {
      return shape.subtrees(shape.of_rank(r, ranks), shape.columns);
    };
    std::int64_t most = 0;  // the same size on all ranks
    for (int r = 0; r < ranks; ++r) most = std::max(most, std::ssize(sent_by(r)));
    const std::int64_t part = width / ranks;
    const Buffer to = pb.temp("to", {ranks * most, part}, DType::f32);
    const Buffer from = pb.temp("from", {ranks * most, part}, DType::f32);
    const auto write = [&](Buffer b, auto value) {
      pb.emit("write", {.writes = {b}}, [=](const Bindings& at) {
        float* const v = at.out(b).as<float>();
        for (std::int64_t i = 0; i < at.out(b).elements(); ++i) v[i] = value(i);
      });
    };
    write(to, [](std::int64_t) { return 0.0f; });
    std::int64_t number = 0;
    for (const ColumnRange& subtree : sent_by(rank)) {
      std::vector<ColumnRange> own;
      std::vector<Buffer> columns;
      for (std::int64_t c = subtree.first; c < subtree.end(); ++c) {
        own.push_back({c, 1});
        columns.push_back(pb.temp("column", {width}, DType::f32));
        write(columns.back(), [c](std::int64_t i) { return gradient(c, i); });
      }
      tree_sum(pb, shape, own, columns);
      for (int r = 0; r < ranks; ++r) {
        const Buffer there = pb.rows(to, r * most + number, 1);
        const Buffer piece = pb.rows(columns[0], r * part, part);
        pb.emit("pack", {.reads = {piece}, .writes = {there}}, [=](const Bindings& at) {
          std::copy_n(at.in(piece).as<float>(), part, at.out(there).as<float>());
        });
      }
      ++number;
    }
    all_to_all(pb, 0, to, from);
    std::vector<ColumnRange> came;
    std::vector<Buffer> pieces;
    for (int r = 0; r < ranks; ++r) {
      std::int64_t n = 0;
      for (const ColumnRange& subtree : sent_by(r)) {
        came.push_back(subtree);
        pieces.push_back(pb.rows(from, r * most + n++, 1));
      }
    }
    tree_sum(pb, shape, came, pieces);
    all_gather(pb, 0, pieces[0], result);
    plan = plan_memory(set);
  }

  static float gradient(std::int64_t column, std::int64_t i) {
    return std::sin(static_cast<float>(17 * column + i)) * 3;
  }

  ProgramSet set;
  MemoryPlan plan;
  Buffer result;
};

TEST(CollectiveProgram, EveryNumberOfRanksSumsABucketToTheSameBits) {
  if (support::test_device() == Device::cuda) GTEST_SKIP() << "these programs are the CPU's";
  constexpr int kWidth = 60;
  for (const ReductionColumns& shape : {ReductionColumns{6, 6}, ReductionColumns{6, 2}}) {
    for (const int ranks : {1, 2, 3, 4, 5, 6}) {
      ThreadRanks transport;
      std::atomic<int> wrong = 0;
      const auto errors = test::run_ranks(ranks, [&](int rank) {
        const auto dp = transport.join("dp", rank, ranks);
        const BucketProgram p(shape, rank, ranks, kWidth);
        // Pieces differ between ranks, and so do their instructions; what is exchanged does not.
        Runner runner(p.set, p.plan, {.communicators = {dp.get()}});
        runner.run("step");
        for (std::int64_t i = 0; i < kWidth; ++i) {
          std::vector<std::optional<float>> terms;
          for (std::int64_t c = 0; c < shape.columns; ++c) {
            terms.emplace_back(BucketProgram::gradient(c, i));
          }
          wrong += runner.view(p.result).as<float>()[i] != *ref::tree_sum<float>(shape, terms);
        }
      });
      EXPECT_THAT(test::texts_of(errors), IsEmpty()) << ranks;
      EXPECT_EQ(wrong, 0) << ranks;
    }
  }
}

// Ranks that only receive write it nowhere before.
TEST(CollectiveProgram, ABroadcastGivesEveryRankTheRootsValue) {
  if (support::test_device() == Device::cuda) GTEST_SKIP() << "these programs are the CPU's";
  constexpr int kRanks = 3, kRoot = 1;
  ThreadRanks transport;
  std::atomic<int> right = 0;
  const auto errors = test::run_ranks(kRanks, [&](int rank) {
    const auto all = transport.join("all", rank, kRanks);
    Ranks r(kRanks, rank);
    const Buffer told = r.pb.temp("told", {2}, DType::f32);
    const Buffer result = r.pb.persistent("result", {2}, DType::f32, Role::output);
    if (rank == kRoot) {
      r.pb.emit("write", {.writes = {told}},
                [=](const Bindings& b) { std::fill_n(b.out(told).as<float>(), 2, 7.0f); });
    }
    broadcast(r.pb, 0, kRoot, told);
    barrier(r.pb, 0, {told}, {told});
    r.pb.emit("keep", {.reads = {told}, .writes = {result}}, [=](const Bindings& b) {
      std::copy_n(b.in(told).as<float>(), 2, b.out(result).as<float>());
    });
    const MemoryPlan plan = plan_memory(r.set);
    Runner runner(r.set, plan, {.communicators = {all.get()}});
    runner.run("exchange");
    const float* const got = runner.view(result).as<float>();
    right += got[0] == 7 && got[1] == 7;
  });
  EXPECT_THAT(test::texts_of(errors), IsEmpty());
  EXPECT_EQ(right, kRanks);
}

}  // namespace
}  // namespace ballast::ops::collective_test
