#include <gtest/gtest.h>

#include <set>

#include "data/cached_dataset.h"
#include "tests/support/errors.h"
#include "tests/support/tiny_cache.h"

namespace ballast::data {
namespace {

using test::all_notes;
using test::occurrences;
using test::order_of;
using ::testing::HasSubstr;

constexpr LatentShape kSquare{16, 1, 4, 4}, kWide{16, 1, 2, 8};

// Nothing is read in these tests, so the files need not be there.
ItemGroup group(const std::string& name, int squares, int wides = 0, double repeats = 1) {
  ItemGroup g{.folder = name, .layout = SampleLayout::ballast, .items = {}};
  g.repeats = repeats;
  for (int i = 0; i < squares + wides; ++i) {
    g.items.push_back({.id = fmt::format("{}/{}", name, i),
                       .latent = "",
                       .text = "",
                       .shape = i < squares ? kSquare : kWide});
  }
  return g;
}

DatasetRequest batches_of(std::int64_t micro, std::int64_t accumulation = 1) {
  DatasetRequest r;
  r.path = "set.toml";
  r.micro_batch = [micro](std::int64_t, std::int64_t, std::int64_t) { return micro; };
  r.accumulation = accumulation;
  return r;
}

CachedDataset make(std::vector<ItemGroup> groups, const DatasetRequest& request,
                   BatchRule rule = BatchRule::whole_steps, double subsample = 1) {
  DatasetContent c;
  c.source = "set.toml";
  c.groups = std::move(groups);
  c.rule = rule;
  c.subsample = subsample;
  return {std::move(c), request};
}

TEST(Epoch, MergesTheBucketsOfDirectoriesAndLeavesOutWhatFillsNoStep) {
  const CachedDataset d = make({group("a", 5, 1), group("b", 4, 2)}, batches_of(2, 2));
  ASSERT_EQ(d.buckets().size(), 2u);
  EXPECT_EQ(d.buckets()[0].items, 8) << "of nine";
  EXPECT_EQ(d.buckets()[1].items, 0) << "three are less than a step";
  const auto steps = d.epoch(0, 1);
  ASSERT_EQ(steps.size(), 2u);
  std::set<std::uint32_t> seen;
  for (const StepBatch& s : steps) {
    EXPECT_EQ(s.samples.size(), 4u);
    for (const std::uint32_t i : s.samples) {
      EXPECT_TRUE(seen.insert(i).second);
      EXPECT_EQ(d.samples()[i].bucket, s.bucket);
    }
  }
  EXPECT_THAT(all_notes(d), HasSubstr("1 of 9 items are left out"));
  EXPECT_THAT(all_notes(d), HasSubstr("the bucket is not used"));
}

TEST(Epoch, KeepsASmallerLastStepByMusubisRule) {
  const CachedDataset d = make({group("a", 5, 1)}, batches_of(2), BatchRule::partial_steps);
  std::multiset<std::size_t> sizes;
  for (const StepBatch& s : d.epoch(0, 1)) sizes.insert(s.samples.size());
  EXPECT_EQ(sizes, (std::multiset<std::size_t>{1, 1, 2, 2}));
  EXPECT_EQ(occurrences(d).size(), 6u);
}

TEST(Epoch, RepeatsCountRoundAndRound) {
  const auto whole = occurrences(make({group("a", 3, 0, 2)}, batches_of(1)));
  EXPECT_EQ(whole, (std::map<std::string, int>{{"a/0", 2}, {"a/1", 2}, {"a/2", 2}}));
  const auto more = occurrences(make({group("a", 4, 0, 1.5)}, batches_of(1)));
  EXPECT_EQ(more, (std::map<std::string, int>{{"a/0", 2}, {"a/1", 2}, {"a/2", 1}, {"a/3", 1}}));
  const auto part = occurrences(make({group("a", 5, 0, 0.5)}, batches_of(1)));
  EXPECT_EQ(part, (std::map<std::string, int>{{"a/0", 1}, {"a/1", 1}})) << "int(2.5)";
  const auto per_bucket = occurrences(make({group("a", 3, 3, 0.34)}, batches_of(1)));
  EXPECT_EQ(per_bucket.size(), 2u) << "one of each shape";
}

TEST(Epoch, OrderDependsOnNothingButTheSeed) {
  const auto dataset = [] { return make({group("a", 40, 24)}, batches_of(2)); };
  const CachedDataset d = dataset();
  const auto order = order_of(d, 0, 7);
  EXPECT_EQ(order, order_of(dataset(), 0, 7));
  EXPECT_NE(order, order_of(d, 0, 8));
  EXPECT_EQ(order, order_of(d, 3, 7)) << "diffusion-pipe repeats its order";
}

TEST(Epoch, MusubisOrderChangesWithTheEpoch) {
  const auto d = make({group("a", 40, 24)}, batches_of(2), BatchRule::partial_steps);
  EXPECT_EQ(order_of(d, 2, 7), order_of(d, 2, 7));
  EXPECT_NE(order_of(d, 2, 7), order_of(d, 3, 7));
  EXPECT_EQ(occurrences(d, 2, 7), occurrences(d, 3, 7));
}

// These numbers are the promise to resumed runs: a change of the generator or of the way from it to
// the order is a change of every run.
TEST(Epoch, OrderIsTheSameOnEveryMachine) {
  const auto d = make({group("a", 6)}, batches_of(2));
  EXPECT_EQ(order_of(d, 0, 42), (std::vector<std::vector<std::uint32_t>>{{0, 3}, {4, 1}, {5, 2}}));
}

TEST(Epoch, ShufflesEveryPlaceFairly) {
  const auto d = make({group("a", 8)}, batches_of(1), BatchRule::partial_steps);
  std::vector<int> first(8);
  for (int seed = 0; seed < 4000; ++seed) {
    ++first[d.epoch(0, static_cast<std::uint64_t>(seed))[0].samples[0]];
  }
  for (const int n : first) EXPECT_NEAR(n, 500, 5 * 21) << "five standard deviations";
}

TEST(Epoch, SubsampleKeepsTheFirstSteps) {
  const auto all = order_of(make({group("a", 10)}, batches_of(1)), 0, 7);
  const auto some =
      order_of(make({group("a", 10)}, batches_of(1), BatchRule::whole_steps, 0.39), 0, 7);
  ASSERT_EQ(some.size(), 3u);
  EXPECT_TRUE(std::equal(some.begin(), some.end(), all.begin()));
}

TEST(Epoch, BatchesFollowTheBucketsSize) {
  DatasetRequest r = batches_of(1);
  std::vector<std::int64_t> asked;
  r.micro_batch = [&](std::int64_t w, std::int64_t h, std::int64_t f) {
    asked = {w, h, f};
    return w > h ? 3 : 1;
  };
  const CachedDataset d = make({group("a", 1, 3)}, r);
  EXPECT_EQ(asked, (std::vector<std::int64_t>{64, 16, 1}));
  EXPECT_EQ(d.buckets()[1].micro_batch, 3);
  EXPECT_EQ(d.epoch(0, 1).size(), 2u);
}

TEST(Epoch, WithoutAStepIsAnErrorThatSaysWhatHelps) {
  const auto error = test::error_of([] { make({group("a", 3)}, batches_of(4)); });
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->code(), ErrorCode::input);
  EXPECT_THAT(error->what(), HasSubstr("3 samples fill no step"));
  ASSERT_EQ(error->advice().size(), 2u);
  EXPECT_THAT(error->advice()[0].change, HasSubstr("smaller batch"));
  EXPECT_THAT(error->advice()[1].change, HasSubstr("num_repeats"));
  DatasetRequest planning = batches_of(4);
  planning.planning = true;
  EXPECT_FAILS(make({group("a", 3)}, planning), ErrorCode::input, "fill no step");
  EXPECT_THAT(all_notes(make({}, planning)), HasSubstr("no cached sample was found"));
}

TEST(Epoch, OfTooManyItemsIsRefusedBeforeItIsListed) {
  EXPECT_FAILS(make({group("a", 3, 0, 1e9)}, batches_of(1)), ErrorCode::input,
               "more than 16000000 items");
}

TEST(Epoch, BucketsOfMusubisDatasetsStayApart) {
  ItemGroup a = group("a", 2), b = group("b", 2);
  a.apart = b.apart = true;
  a.batch = 1;
  b.batch = 2;
  const auto d = make({a, b}, batches_of(9), BatchRule::partial_steps);
  ASSERT_EQ(d.buckets().size(), 2u);
  EXPECT_EQ(d.buckets()[0].micro_batch, 1);
  EXPECT_EQ(d.buckets()[1].micro_batch, 2);
  EXPECT_EQ(d.epoch(0, 1).size(), 3u);
}

TEST(Epoch, TheIndexKnowsItsSize) {
  const auto small = make({group("a", 10)}, batches_of(1));
  const auto large = make({group("a", 10'000)}, batches_of(1));
  EXPECT_GT(large.bytes().count, 10'000u * (sizeof(Sample) + sizeof(CachedItem)));
  EXPECT_LT(large.bytes().count, 10'000u * 1024);
  EXPECT_LT(small.bytes().count, 64u << 10);
}

}  // namespace
}  // namespace ballast::data
