#include "ops/add.h"

#include <gtest/gtest.h>

#include "core/to_size.h"
#include "tests/ref/add.h"
#include "tests/support/recorded_program.h"
#include "tests/support/test_device.h"

namespace ballast::ops::add_test {
namespace {

using support::RecordedProgram;
using support::SampleTensor;

using Case = std::tuple<Shape, DType, DType, int>;
class AddOnCpu : public testing::TestWithParam<Case> {};

TEST_P(AddOnCpu, MatchesReference) {
  const auto& [shape, x_type, y_type, padding] = GetParam();
  ThreadPool pool(2);
  SampleTensor x(x_type, shape, {.row_padding = padding, .start = padding});
  SampleTensor y(y_type, shape, {.row_padding = padding > 2 ? 0 : 2 * padding, .start = 1});
  x.fill_normal(1);
  y.fill_normal(2);
  const std::vector<double> before = y.values();
  const std::vector<double> want = ref::add(x.values(), before, 0.375f);
  add_into({.x = x.view(), .y = y.view(), .alpha = 0.375f}, support::test_stream(pool));
  for (std::int64_t i = 0; i < y.size(); ++i) {
    const auto at = to_size(i);
    // The product and the sum are rounded to f32 (cancellation: of the larger operand), then the
    // result to its dtype.
    const double size = std::abs(before[at]) + std::abs(0.375 * x[i]);
    EXPECT_NEAR(y[i], want[at],
                size * 2 * 0x1p-24 + std::abs(want[at]) * 1.01 * support::rounding(y_type));
  }
  EXPECT_TRUE(y.padding_untouched());
}

INSTANTIATE_TEST_SUITE_P(Shapes, AddOnCpu,
                         testing::Combine(testing::Values(Shape{7, 33}, Shape{1, 1}, Shape{0, 5},
                                                          Shape{5, 0}, Shape{600, 65},
                                                          Shape{3, 20000}),
                                          testing::Values(DType::f32, DType::bf16),
                                          testing::Values(DType::f32, DType::bf16),
                                          testing::Values(0, 1, 3)));

TEST(AddBits, DependNeitherOnThreadsNorOnLayoutNorOnChunks) {
  const Shape shape = {700, 67};
  std::vector<double> want;
  for (const int threads : {1, 2, 3}) {
    for (const std::int64_t padding : {0, 3}) {
      ThreadPool pool(threads);
      SampleTensor x(DType::bf16, shape, {.row_padding = padding, .start = threads});
      SampleTensor y(DType::f32, shape, {.row_padding = 0, .start = threads});
      x.fill_normal(1);
      y.fill_normal(2);
      SampleTensor chunked = y;
      add_into({.x = x.view(), .y = y.view(), .alpha = 0.3f}, support::test_stream(pool));
      if (want.empty()) want = y.values();
      EXPECT_TRUE(y.values() == want);
      for (const std::int64_t first : {0, 256, 512}) {
        const std::int64_t rows = std::min<std::int64_t>(256, 700 - first);
        add_into(
            {.x = x.view().rows(first, rows), .y = chunked.view().rows(first, rows), .alpha = 0.3f},
            support::test_stream(pool));
      }
      EXPECT_TRUE(chunked.bytes() == y.bytes());
    }
  }
}

TEST(AddChecks, RefuseWhatDoesNotFit) {
  ThreadPool pool(1);
  SampleTensor a(DType::f32, {2, 3}), b(DType::f32, {3, 2}), c(DType::f16, {2, 3});
  SampleTensor gaps(DType::f32, {2, 2, 3}, {.row_padding = 1}), solid(DType::f32, {2, 2, 3});
  EXPECT_THROW(add_into({.x = a.view(), .y = b.view()}, support::test_stream(pool)), Error);
  EXPECT_THROW(add_into({.x = c.view(), .y = a.view()}, support::test_stream(pool)), Error);
  EXPECT_THROW(add_into({.x = gaps.view(), .y = solid.view()}, support::test_stream(pool)), Error);
}

TEST(AddRecorded, ReadsAndWritesY) {
  const SampleTensor a = SampleTensor(DType::f32, {2, 3, 4}).fill_normal(1);
  const SampleTensor b = SampleTensor(DType::bf16, {2, 3, 4}).fill_normal(2);
  RecordedProgram p;
  const Buffer x = p.input("x", a), y = p.input("y", b);
  add_into(p.pb, x, y);
  EXPECT_EQ(p.instruction(0).reads, (std::vector{x, y}));
  EXPECT_EQ(p.instruction(0).writes, std::vector{y});
  p.run();
  SampleTensor want(DType::bf16, {2, 3, 4});
  for (std::int64_t i = 0; i < want.size(); ++i) {
    want.set(i, static_cast<float>(a[i]) + static_cast<float>(b[i]));
  }
  EXPECT_EQ(p.value(y).values(), want.values());
}

}  // namespace
}  // namespace ballast::ops::add_test
