#include "ops/dropout.h"

#include <gtest/gtest.h>

#include "core/to_size.h"
#include "tests/ref/dropout.h"
#include "tests/support/finite_differences.h"
#include "tests/support/recorded_program.h"
#include "tests/support/test_device.h"

namespace ballast::ops::dropout_test {
namespace {

using support::RecordedProgram;
using support::SampleTensor;

constexpr RandomSource kSource = random_source(5, "dropout", 2, "blocks.0.ffn.0");

TEST(DropoutRef, IsItsOwnBackward) {
  const std::vector<double> x = SampleTensor(DType::f64, {20}).fill_normal(1).values();
  const std::vector<double> dy = SampleTensor(DType::f64, {20}).fill_normal(2).values();
  const auto loss = [&](const std::vector<double>& at) {
    const std::vector<double> y = ref::dropout(at, 0.4, kSource, 3);
    double sum = 0;
    for (std::size_t i = 0; i < y.size(); ++i) sum += y[i] * dy[i];
    return sum;
  };
  const std::vector<double> numeric = support::numeric_gradient(loss, x);
  const std::vector<double> exact = ref::dropout(dy, 0.4, kSource, 3);
  for (std::size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(exact[i], numeric[i], 1e-8);
}

TEST(DropoutRef, DropsTheShareItIsAskedFor) {
  const std::vector<double> ones(100000, 1.0);
  for (const double p : {0.0, 0.1, 0.5, 0.9}) {
    double dropped = 0;
    for (const double y : ref::dropout(ones, p, kSource)) dropped += y == 0;
    EXPECT_NEAR(dropped / 1e5, p, 4 * std::sqrt(p * (1 - p) / 1e5));
  }
}

class DropoutOnCpu
    : public testing::TestWithParam<std::tuple<std::int64_t, std::int64_t, DType, DType, bool>> {};

TEST_P(DropoutOnCpu, MatchesReference) {
  const auto [rows, columns, x_type, y_type, accumulate] = GetParam();
  ThreadPool pool(2);
  SampleTensor x(x_type, {rows, columns}, {.row_padding = 3, .start = 1});
  x.fill_normal(1);
  for (const std::int64_t padding : {0, 5}) {
    SampleTensor y(y_type, {rows, columns}, {.row_padding = padding, .start = 2});
    y.fill_normal(2);
    const std::vector<double> before = y.values();
    dropout({.x = x.view(),
             .y = y.view(),
             .probability = 0.3,
             .source = kSource,
             .first_row = 3,
             .accumulate = accumulate},
            support::test_stream(pool));
    const std::vector<double> want =
        ref::dropout(x.values(), 0.3, kSource, static_cast<std::uint64_t>(3 * columns));
    for (std::int64_t i = 0; i < y.size(); ++i) {
      const auto k = to_size(i);
      // Scale, product and sum are rounded to f32, the result to its own dtype.
      const double start = accumulate ? before[k] : 0, end = start + want[k];
      ASSERT_NEAR(y[i], end,
                  2.01 * 0x1p-24 * std::abs(want[k]) +
                      (0x1p-24 + 1.01 * support::rounding(y_type)) * std::abs(end))
          << i;
      ASSERT_TRUE(want[k] != 0 || y[i] == start) << i;
    }
    EXPECT_TRUE(y.padding_untouched());
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, DropoutOnCpu,
                         testing::Combine(testing::Values(0, 1, 7, 300),
                                          testing::Values(1, 5, 64, 129),
                                          testing::Values(DType::f32, DType::bf16),
                                          testing::Values(DType::f32, DType::bf16),
                                          testing::Bool()));

TEST(DropoutBits, DependNeitherOnThreadsNorOnRowsPerCallNorOnStrides) {
  constexpr std::int64_t kRows = 700, kColumns = 77;
  std::vector<double> whole;
  for (const int threads : {1, 2, 3}) {
    ThreadPool pool(threads);
    SampleTensor x(DType::bf16, {kRows, kColumns}, {.row_padding = threads - 1, .start = threads});
    x.fill_normal(1);
    SampleTensor parts(DType::f32, {kRows, kColumns}, {.row_padding = 3 - threads});
    for (std::int64_t row = 0; row < kRows; row += 101) {
      const std::int64_t n = std::min<std::int64_t>(101, kRows - row);
      dropout({.x = x.view().rows(row, n),
               .y = parts.view().rows(row, n),
               .probability = 0.25,
               .source = kSource,
               .first_row = row},
              support::test_stream(pool));
    }
    // In place, all rows at once.
    dropout({.x = x.view(), .y = x.view(), .probability = 0.25, .source = kSource},
            support::test_stream(pool));
    if (threads == 1) whole = parts.values();
    EXPECT_TRUE(parts.values() == whole);
    for (std::int64_t i = 0; i < x.size(); ++i) {
      ASSERT_EQ(x[i],
                support::bf16_value(support::bf16_bits(static_cast<float>(whole[to_size(i)]))));
    }
  }
}

TEST(DropoutChecks, RefuseWhatDoesNotFit) {
  ThreadPool pool(1);
  SampleTensor x(DType::f32, {2, 3}), y(DType::f32, {2, 3}), wrong(DType::f32, {3, 2});
  const auto run = [&](SampleTensor& to, double p) {
    dropout({.x = x.view(), .y = to.view(), .probability = p, .source = kSource},
            support::test_stream(pool));
  };
  EXPECT_NO_THROW(run(y, 0.999999999999));
  EXPECT_THROW(run(wrong, 0.5), Error);
  EXPECT_THROW(run(y, 1), Error);
  EXPECT_THROW(run(y, -0.1), Error);
}

TEST(DropoutRecorded, UsesTheSampleOfTheStep) {
  const SampleTensor values = SampleTensor(DType::f32, {4, 50}).fill_normal(1);
  const auto run = [&](std::int64_t first_sample, std::int64_t sample) {
    RecordedProgram p;
    const Buffer x = p.input("x", values);
    const Buffer y =
        dropout(p.pb, x, {.probability = 0.5, .site = random_site("dropout", "a", sample)});
    EXPECT_EQ(p.instruction(0).reads, std::vector{x});
    EXPECT_EQ(p.instruction(0).writes, std::vector{y});
    dropout_into(
        p.pb, x, y,
        {.probability = 0.5, .site = random_site("dropout", "a", sample), .accumulate = true});
    EXPECT_EQ(p.instruction(1).reads, (std::vector{x, y}));
    p.run({.step = 9, .seed = 4, .first_sample = first_sample});
    return p.value(y).values();
  };
  const std::vector<double> once =
      ref::dropout(values.values(), 0.5, random_source(4, "dropout", 9, "a"));
  const std::vector<double> got = run(0, 0);
  for (std::size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i], 2 * once[i]);
  EXPECT_EQ(run(2, 1), run(0, 3));
  EXPECT_NE(run(0, 1), got);
}

}  // namespace
}  // namespace ballast::ops::dropout_test
