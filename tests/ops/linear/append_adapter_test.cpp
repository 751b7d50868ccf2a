#include "ops/linear/append_adapter.h"

#include <gtest/gtest.h>

#include "core/to_size.h"
#include "tests/ref/append_adapter.h"
#include "tests/support/recorded_program.h"

namespace ballast::ops::append_adapter_test {
namespace {

using support::RecordedProgram;
using support::SampleTensor;

struct Sizes {
  std::int64_t from_rows, from_columns, rows, columns, column, padding;
};

// Margins of real layers, odd sizes, nothing at all.
constexpr Sizes kSizes[] = {{40, 16, 40, 48, 16, 24}, {16, 72, 16, 72, 0, 64}, {3, 70, 8, 70, 0, 5},
                            {33, 4, 33, 12, 8, 3},    {0, 4, 7, 9, 2, 0},      {5, 3, 5, 3, 0, 1},
                            {700, 8, 700, 24, 0, 40}};

class InlayOfTypes : public testing::TestWithParam<std::tuple<DType, DType>> {};

TEST_P(InlayOfTypes, MatchesReferenceForManyMatricesAtOnce) {
  const auto& [from_type, to_type] = GetParam();
  for (const int threads : {0, 1, 3}) {
    if (threads == 0 && support::test_device() != Device::cpu) continue;
    std::vector<SampleTensor> from, to;
    std::vector<AppendAdapter> all;
    for (const Sizes& s : kSizes) {
      from.emplace_back(from_type, Shape{s.from_rows, s.from_columns});
      from.back().fill_normal(static_cast<std::uint32_t>(from.size()));
      to.emplace_back(to_type, Shape{s.rows, s.columns},
                      SampleTensor::Layout{.row_padding = s.padding, .start = 0});
      to.back().fill_normal(99);  // what was there must go
    }
    for (std::size_t i = 0; i < from.size(); ++i) {
      all.push_back({.from = from[i].view(),
                     .to = to[i].view(),
                     .column = kSizes[i].column,
                     .factor = 0.375f});
    }
    ThreadPool pool(std::max(1, threads));
    append_adapter(all, threads == 0 ? Stream() : support::test_stream(pool));
    for (std::size_t i = 0; i < from.size(); ++i) {
      const Sizes& s = kSizes[i];
      const std::vector<double> want = ref::append_adapter(
          from[i].values(), s.from_rows, s.from_columns, s.rows, s.columns, s.column, 0.375);
      ASSERT_TRUE(to[i].padding_untouched()) << i;
      for (std::int64_t k = 0; k < to[i].size(); ++k) {
        const double w = want[to_size(k)];
        // 0.375 x has three bits more than x: one rounding to f32, one to the result's type.
        ASSERT_NEAR(to[i][k], w, std::abs(w) * (0x1p-24 + 1.01 * support::rounding(to_type)))
            << i << ' ' << k;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, InlayOfTypes,
                         testing::Combine(testing::Values(DType::f32, DType::bf16),
                                          testing::Values(DType::f32, DType::bf16)));

TEST(AppendAdapter, RefusesMatricesThatDoNotFit) {
  SampleTensor from(DType::f32, {4, 4}), to(DType::f32, {4, 6});
  ThreadPool pool(1);
  const AppendAdapter a = {.from = from.view(), .to = to.view(), .column = 3};
  EXPECT_THROW(append_adapter({{a}}, support::test_stream(pool)), Error);
}

TEST(RecordedInlay, WritesColumnsBesideAMatrixAndRowsBelowIt) {
  RecordedProgram p;
  const Buffer b = p.input("b", SampleTensor(DType::f32, {3, 2}).fill_normal(1));
  const Buffer a = p.input("a", SampleTensor(DType::f32, {2, 4}).fill_normal(2));
  const Buffer wide = p.input("wide", SampleTensor(DType::f32, {5, 8}).fill_normal(3));
  const SampleTensor before = SampleTensor(DType::f32, {5, 8}).fill_normal(3);
  append_adapter(
      p.pb, {{.from = b, .to = p.pb.columns(p.pb.rows(wide, 0, 3), 4, 4), .column = 1, .factor = 2},
             {.from = a, .to = p.pb.columns(p.pb.rows(wide, 3, 2), 0, 4)}});
  p.run();
  const SampleTensor got = p.value(wide), vb = p.value(b), va = p.value(a);
  for (std::int64_t i = 0; i < 5; ++i) {
    for (std::int64_t j = 0; j < 8; ++j) {
      double want = before[i * 8 + j];
      if (i < 3 && j >= 4) want = j == 5 || j == 6 ? 2 * vb[i * 2 + j - 5] : 0;
      if (i >= 3 && j < 4) want = va[(i - 3) * 4 + j];
      EXPECT_EQ(got[i * 8 + j], want) << i << ' ' << j;
    }
  }
}

}  // namespace
}  // namespace ballast::ops::append_adapter_test
