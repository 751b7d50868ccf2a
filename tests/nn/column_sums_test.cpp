#include "nn/column_sums.h"

#include <gmock/gmock.h>

#include <cmath>
#include <optional>

#include "plan/memory_plan.h"
#include "tests/ref/collective.h"
#include "tests/support/errors.h"
#include "tests/support/test_device.h"

namespace ballast::column_sums_test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr std::int64_t kWidth = 37;

float value(std::int64_t column, std::int64_t i) {
  return std::sin(static_cast<float>(17 * column + i)) * 3;
}

// One rank's sums over columns of gradients that a test writes.
class OneRank {
 public:
  OneRank(std::int64_t columns, Tier tier, std::int64_t samples)
      : how_{.columns = {.columns = columns, .group = columns}} {
    {
      ProgramBuilder pb(set_, "load");
      gradient_ = pb.persistent("grad", {kWidth}, DType::f32, Role::gradient, tier);
      sums_.emplace(
          pb, how_,
          ColumnSums::Sets{.gradients = {{gradient_}},
                           .name = [](std::string_view of, int) { return std::string(of); }},
          std::span(&samples, 1));
    }
    sums_->record(set_);
    plan_ = plan_memory(set_);
  }

  // The sum over all columns of a step that have samples.
  std::vector<float> run(std::int64_t samples) {
    Runner runner(set_, plan_);
    const auto ends = sums_->column_ends(0, samples, 0);
    const auto columns = how_.columns_of(0, samples);
    EXPECT_EQ(ends.size(), columns.size());
    for (std::size_t c = 0; c < columns.size(); ++c) {
      std::vector<float> now;
      for (std::int64_t i = 0; i < kWidth; ++i) now.push_back(value(columns[c], i));
      runner.write(gradient_, std::as_bytes(std::span(now)));
      if (!ends[c].empty()) runner.run(ends[c]);
    }
    EXPECT_EQ(sums_->exchange(samples, 0), "");
    std::vector<float> sum(kWidth);
    runner.read(gradient_, std::as_writable_bytes(std::span(sum)));
    return sum;
  }
  Bytes gradient_memory(Tier tier) const { return plan_.peak_of(tier); }
  const ColumnSums& sums() const { return *sums_; }

 private:
  DataParallel how_;
  ProgramSet set_;
  Buffer gradient_;
  std::optional<ColumnSums> sums_;
  MemoryPlan plan_;
};

TEST(ColumnSums, OfOneRankAreThoseOfTheTree) {
  if (support::test_device() == Device::cuda) GTEST_SKIP() << "these programs are the CPU's";
  for (const Tier tier : {Tier::device, Tier::host}) {
    for (std::int64_t columns = 2; columns <= 9; ++columns) {
      for (const std::int64_t samples : {columns, 2 * columns + 1, columns / 2 + 1}) {
        OneRank rank(columns, tier, samples);
        const std::vector<float> sum = rank.run(samples);
        const ReductionColumns shape = {.columns = columns, .group = columns};
        for (std::int64_t i = 0; i < kWidth; ++i) {
          std::vector<std::optional<float>> terms;
          for (std::int64_t c = 0; c < columns; ++c) {
            const bool used = shape.samples_of({c, 1}, samples).count > 0;
            terms.push_back(used ? std::optional(value(c, i)) : std::nullopt);
          }
          ASSERT_EQ(sum[to_size(i)], *ref::tree_sum<float>(shape, terms))
              << columns << " columns, " << samples << " samples";
        }
      }
    }
  }
}

// As many sums wait as the tree is deep.
TEST(ColumnSums, WaitInAFewBuffers) {
  constexpr std::uint64_t kNext = 256;  // where the next buffer begins behind one of 148 bytes
  const auto memory = [](std::int64_t columns) {
    return OneRank(columns, Tier::device, columns).gradient_memory(Tier::device).count;
  };
  EXPECT_EQ(memory(3), memory(2));
  EXPECT_EQ(memory(4), memory(2) + kNext);
  EXPECT_EQ(memory(8), memory(2) + 2 * kNext);
  EXPECT_THAT(OneRank(2, Tier::device, 2).sums().column_ends(0, 2, 0),
              ElementsAre("end_column.0.0.aside", "end_column.1.1"));
}

TEST(DataParallelShares, GiveRanksWholeColumns) {
  const DataParallel how = {.columns = {.columns = 5, .group = 5}, .ranks = 2};
  EXPECT_THAT(how.columns_of(0, 5), ElementsAre(0, 1));
  EXPECT_THAT(how.columns_of(1, 5), ElementsAre(2, 3, 4));
  EXPECT_EQ(how.busiest(5), 1);
  const DataParallel more = {.columns = {.columns = 4, .group = 4}, .ranks = 4};
  EXPECT_THAT(more.columns_of(1, 2), IsEmpty());
  EXPECT_THAT(more.columns_of(2, 2), ElementsAre(2));
}

TEST(ColumnSums, OfMoreRanksThanColumnsAreRefused) {
  ProgramSet set;
  ProgramBuilder pb(set, "load");
  const std::int64_t samples = 4;
  const DataParallel how = {.columns = {.columns = 2, .group = 2}, .ranks = 3};
  EXPECT_FAILS(ColumnSums(pb, how, {}, std::span(&samples, 1)), ErrorCode::internal,
               "2 columns for 3 ranks");
}

}  // namespace
}  // namespace ballast::column_sums_test
