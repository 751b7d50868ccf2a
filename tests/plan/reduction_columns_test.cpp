#include "plan/reduction_columns.h"

#include <gmock/gmock.h>

#include <bit>
#include <map>
#include <optional>
#include <utility>

#include "core/to_size.h"
#include "tests/ref/collective.h"
#include "tests/support/errors.h"

namespace ballast::reduction_columns_test {
namespace {

using testing::ElementsAre;
using Join = ReductionColumns::Join;

// Sums of these depend on their order.
float value_of(std::int64_t sample) {
  const auto mixed = static_cast<std::uint32_t>(sample + 1) * 2654435761u;
  return static_cast<float>(mixed >> 8) * 0x1p-20f - 6;
}

// What a step of so many samples leaves in each column: one after the other, from zero.
std::vector<std::optional<float>> column_sums(const ReductionColumns& shape, std::int64_t samples) {
  std::vector<std::optional<float>> sums(to_size(shape.columns));
  for (std::int64_t i = 0; i < samples; ++i) {
    auto& sum = sums[to_size(shape.column_of(i, samples))];
    sum = sum.value_or(0) + value_of(i);
  }
  return sums;
}

void join(const ReductionColumns& shape, const std::vector<ColumnRange>& pieces,
          std::vector<float>& values) {
  for (const Join& j : shape.joins(pieces)) values[j.into] += values[j.from];
}

struct Exchange {
  float sum = 0;
  std::size_t most_sent = 0;
};

using SubtreeSums = std::map<std::pair<std::int64_t, std::int64_t>, float>;

float subtree_sum(const ReductionColumns& shape, ColumnRange subtree,
                  const std::vector<std::optional<float>>& columns, SubtreeSums& known) {
  const auto [it, is_new] = known.try_emplace({subtree.first, subtree.count});
  if (!is_new) return it->second;  // another number of ranks has it as well
  std::vector<ColumnRange> own;
  std::vector<float> values;
  for (std::int64_t c = subtree.first; c < subtree.end(); ++c) {
    if (!columns[to_size(c)]) continue;
    own.push_back({c, 1});
    values.push_back(*columns[to_size(c)]);
  }
  join(shape, own, values);
  return it->second = values.at(0);
}

// Every rank adds up what it holds whole; all pieces come together and are added up.
Exchange exchanged_sum(const ReductionColumns& shape, std::int64_t ranks, std::int64_t samples,
                       const std::vector<std::optional<float>>& columns, SubtreeSums& known) {
  Exchange result;
  std::vector<ColumnRange> pieces;
  std::vector<float> values;
  for (std::int64_t r = 0; r < ranks; ++r) {
    const auto sent = shape.subtrees(shape.of_rank(r, ranks), samples);
    result.most_sent = std::max(result.most_sent, sent.size());
    for (const ColumnRange& subtree : sent) {
      pieces.push_back(subtree);
      values.push_back(subtree_sum(shape, subtree, columns, known));
    }
  }
  join(shape, pieces, values);
  result.sum = values.at(0);
  return result;
}

TEST(ReductionColumns, EveryNumberOfRanksGivesTheBitsOfOne) {
  std::size_t most_sent = 0;
  std::int64_t cases = 0, wrong = 0;
  for (std::int64_t columns = 1; columns <= 48; ++columns) {
    for (std::int64_t group = 1; group <= columns; ++group) {
      const ReductionColumns shape = {columns, group};
      // All columns, and a short last step that leaves a third of them empty.
      for (const std::int64_t samples : {columns, 2 * columns / 3}) {
        if (samples == 0) continue;
        const auto sums = column_sums(shape, samples);
        const float want = ref::tree_sum(shape, sums).value();
        SubtreeSums known;
        for (std::int64_t ranks = 1; ranks <= columns; ++ranks, ++cases) {
          const Exchange got = exchanged_sum(shape, ranks, samples, sums, known);
          wrong += std::bit_cast<std::uint32_t>(got.sum) != std::bit_cast<std::uint32_t>(want);
          most_sent = std::max(most_sent, got.most_sent);
        }
      }
    }
  }
  EXPECT_EQ(wrong, 0) << "of " << cases;
  // Six in 73 of 76,047 cases, with groups or ranks that do not divide the columns.
  EXPECT_LE(most_sent, 6u);
}

TEST(ReductionColumns, PowersOfTwoSendOneSubtree) {
  for (const std::int64_t columns : {1, 2, 4, 8, 16, 32}) {
    for (std::int64_t group = 1; group <= columns; group *= 2) {
      const ReductionColumns shape = {columns, group};
      for (std::int64_t ranks = 1; ranks <= columns; ranks *= 2) {
        for (std::int64_t r = 0; r < ranks; ++r) {
          EXPECT_EQ(shape.subtrees(shape.of_rank(r, ranks), columns).size(), 1u);
        }
      }
    }
  }
}

// Otherwise the test above would prove nothing.
TEST(ReductionColumns, AnotherShapeGivesOtherBits) {
  const std::int64_t samples = 12;
  const auto sum = [&](const ReductionColumns& shape) {
    return *ref::tree_sum(shape, column_sums(shape, samples));
  };
  EXPECT_NE(sum({1, 1}), sum({12, 12}));
  EXPECT_NE(sum({12, 12}), sum({12, 3}));
}

TEST(ReductionColumns, DealOutSamplesInOrder) {
  const ReductionColumns shape = {4, 4};
  for (const std::int64_t samples : {1, 3, 4, 6, 9}) {
    std::int64_t next = 0;
    for (std::int64_t c = 0; c < 4; ++c) {
      const ColumnRange of = shape.samples_of({c, 1}, samples);
      EXPECT_EQ(of.first, next);
      for (std::int64_t i = of.first; i < of.end(); ++i) EXPECT_EQ(shape.column_of(i, samples), c);
      next = of.end();
    }
    EXPECT_EQ(next, samples);
  }
}

TEST(ReductionColumns, NameSubtreesByTheirColumns) {
  const ReductionColumns shape = {6, 6};  // ((0 1) (2 3)) (4 5)
  EXPECT_THAT(shape.subtrees({0, 6}, 6), ElementsAre(ColumnRange{0, 6}));
  EXPECT_THAT(shape.subtrees({0, 3}, 6), ElementsAre(ColumnRange{0, 2}, ColumnRange{2, 1}));
  EXPECT_THAT(shape.subtrees({3, 3}, 6), ElementsAre(ColumnRange{3, 1}, ColumnRange{4, 2}));
  // A step of two samples: columns 1, 2, 4 and 5 have none.
  EXPECT_THAT(shape.subtrees({1, 5}, 2), ElementsAre(ColumnRange{2, 2}));
  const ReductionColumns groups = {6, 2};  // ((0 1) (2 3)) (4 5), by groups
  EXPECT_THAT(groups.subtrees({2, 4}, 6), ElementsAre(ColumnRange{2, 2}, ColumnRange{4, 2}));
}

TEST(ReductionColumns, JoinPiecesAsSoonAsTheyAreThere) {
  const ReductionColumns shape = {8, 8};
  std::vector<ColumnRange> columns;
  for (std::int64_t c = 0; c < 8; ++c) columns.push_back({c, 1});
  const auto joins = shape.joins(columns);
  EXPECT_THAT(joins, ElementsAre(Join{0, 1, 1}, Join{2, 3, 3}, Join{0, 2, 3}, Join{4, 5, 5},
                                 Join{6, 7, 7}, Join{4, 6, 7}, Join{0, 4, 7}));
  // Made one by one they need room for four: 1 + log2 of 8.
  std::size_t alive = 0, most = 0, next = 0;
  for (std::size_t piece = 0; piece < columns.size(); ++piece) {
    most = std::max(most, ++alive);
    for (; next < joins.size() && joins[next].after <= piece; ++next) --alive;
  }
  EXPECT_EQ(most, 4u);
  EXPECT_EQ(alive, 1u);
}

TEST(ReductionColumns, RefuseWhatIsNoSubtree) {
  const ReductionColumns shape = {4, 4};
  EXPECT_FAILS(shape.joins(std::vector<ColumnRange>{{0, 1}, {1, 2}}), ErrorCode::internal,
               "columns 1+2 are no subtree of 4");
  EXPECT_FAILS(shape.of_rank(0, 5), ErrorCode::internal, "rank 0 of 5 for 4 columns");
  EXPECT_FAILS((ReductionColumns{0, 1}.subtrees({0, 1}, 1)), ErrorCode::internal, "0 columns");
}

}  // namespace
}  // namespace ballast::reduction_columns_test
