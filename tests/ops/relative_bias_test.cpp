#include "ops/relative_bias.h"

#include <gtest/gtest.h>

#include "core/to_size.h"
#include "tests/ref/relative_bias.h"
#include "tests/support/errors.h"
#include "tests/support/recorded_program.h"
#include "tests/support/row_op.h"

namespace ballast::ops::relative_bias_test {
namespace {

using namespace support;

TEST(RelativeBuckets, AreThoseOfTheModelsForDistancesUpTo600) {
  for (const bool bidirectional : {true, false}) {
    const RelativeBuckets b = relative_buckets(32, 128, bidirectional);
    for (std::int64_t d = -600; d <= 600; ++d) {
      ASSERT_EQ(bucket_of(b, d), ref::t5_bucket(d, bidirectional)) << d;
    }
  }
}

TEST(RelativeBuckets, OfOtherSizesCoverEveryDistance) {
  for (const std::int64_t count : {4, 8, 64, 256}) {
    for (const std::int64_t most : {130, 1000}) {
      const RelativeBuckets b = relative_buckets(count, most, true);
      for (std::int64_t d = -2000; d <= 2000; ++d) {
        ASSERT_GE(bucket_of(b, d), 0);
        ASSERT_LT(bucket_of(b, d), count);
        if (d < 0) {
          ASSERT_LE(bucket_of(b, d), bucket_of(b, d - 1));
        }
      }
    }
  }
  EXPECT_THROW(relative_buckets(512, 128, true), Error);
  EXPECT_THROW(relative_buckets(32, 8, true), Error);
}

struct Case {
  std::int64_t heads, queries, keys, first;
  bool bidirectional;
};

TEST(RelativeBias, MatchesReferenceAndItsGradientAddsUpByBucket) {
  for (const Case& c :
       {Case{3, 12, 12, 0, true}, Case{2, 150, 141, 0, true}, Case{4, 140, 140, 0, false},
        Case{5, 1, 33, 20, false}, Case{1, 1, 1, 0, true}}) {
    for (const int threads : {1, 3}) {
      ThreadPool pool(threads);
      const std::int64_t entries = c.queries + c.keys - 1, zero = c.queries - 1 + c.first;
      SampleTensor table(DType::f32, {32, c.heads}), bias(DType::f32, {c.heads, entries});
      SampleTensor dbias = bias, dtable = table;
      table.fill_normal(1), dbias.fill_normal(2), dtable.fill_normal(3);
      Doubles want_bias(to_size(bias.size())), want_dtable = dtable.values();
      for (std::int64_t h = 0; h < c.heads; ++h) {
        for (std::int64_t e = 0; e < entries; ++e) {
          const std::int64_t n = ref::t5_bucket(e - zero, c.bidirectional);
          want_bias[to_size(h * entries + e)] = table[n * c.heads + h];
          want_dtable[to_size(n * c.heads + h)] += dbias[h * entries + e];
        }
      }
      const RelativeBuckets buckets = relative_buckets(32, 128, c.bidirectional);
      relative_bias({.table = table.view(), .bias = bias.view(), .buckets = buckets, .zero = zero},
                    test_stream(pool));
      relative_bias_backward(
          {.dbias = dbias.view(), .dtable = dtable.view(), .buckets = buckets, .zero = zero},
          test_stream(pool));
      expect_close(bias, want_bias, 0, "bias");
      expect_close(dtable, want_dtable, 1e-6, "dtable");  // sums of up to 100 terms
    }
  }
}

TEST(RelativeBias, RefusesATableOfOtherHeads) {
  ThreadPool pool(1);
  SampleTensor table(DType::f32, {32, 3}), bias(DType::f32, {4, 9});
  EXPECT_THROW(relative_bias({.table = table.view(),
                              .bias = bias.view(),
                              .buckets = relative_buckets(32, 128, true),
                              .zero = 4},
                             test_stream(pool)),
               Error);
}

TEST(RelativeBias, IsRecordedForQueriesThatBeginAtTheStep) {
  SampleTensor table(DType::f32, {32, 1});
  table.fill_normal(1);
  RecordedProgram p;
  const Buffer t = p.input("table", table);
  const Buffer bias = relative_bias(
      p.pb, t,
      {.buckets = relative_buckets(32, 128, false), .queries = 1, .keys = 9, .grows = true});
  p.run({.step = 6});
  for (std::int64_t key = 0; key < 9; ++key) {
    EXPECT_EQ(p.value(bias)[key], table[ref::t5_bucket(key - 6, false)]) << key;
  }
}

}  // namespace
}  // namespace ballast::ops::relative_bias_test
