#include "ops/global_norm.h"

#include <gtest/gtest.h>

#include <array>
#include <limits>

#include "core/to_size.h"
#include "ops/kernels/ordered_sum.h"
#include "tests/ref/global_norm.h"
#include "tests/support/golden_file.h"
#include "tests/support/recorded_program.h"
#include "tests/support/test_device.h"

namespace ballast::ops::global_norm_test {
namespace {

using support::GoldenFile;
using support::RecordedProgram;
using support::SampleTensor;

class SumSquaresOnCpu : public testing::TestWithParam<std::tuple<std::int64_t, DType>> {};

TEST_P(SumSquaresOnCpu, MatchesReference) {
  const auto [n, dtype] = GetParam();
  ThreadPool pool(2);
  SampleTensor x(dtype, {n}, {.start = 3}), sum(DType::f64, {1});
  x.fill_normal(1, 1e3);
  sum.set(0, 0.125);
  sum_squares({.x = x.view(), .sum = sum.view()}, support::test_stream(pool));
  const double want = 0.125 + ref::sum_squares(x.values());
  EXPECT_NEAR(sum[0], want, want * 1e-12);  // f64 throughout: only the order differs
}

INSTANTIATE_TEST_SUITE_P(Sizes, SumSquaresOnCpu,
                         testing::Combine(testing::Values(0, 1, 3, 15, 17, 1000, kSumBlock,
                                                          3 * kSumBlock + 5),
                                          testing::Values(DType::f32, DType::bf16)));

TEST(SumSquaresBits, DependNeitherOnThreadsNorOnAlignmentNorOnTheCut) {
  constexpr std::int64_t kCount = 2 * kSumGroup + 3 * kSumBlock + 333;
  double want = 0;
  for (const int threads : {1, 2, 3}) {
    ThreadPool pool(threads);
    SampleTensor x(DType::f32, {kCount}, {.start = threads - 1}), sum(DType::f64, {1});
    SampleTensor parts(DType::f64, {1});
    x.fill_normal(1);
    sum_squares({.x = x.view(), .sum = sum.view()}, support::test_stream(pool));
    if (threads == 1) want = sum[0];
    EXPECT_EQ(sum[0], want);
    for (std::int64_t first = 0; first < kCount; first += kSumGroup) {
      sum_squares(
          {.x = x.view().rows(first, std::min(kSumGroup, kCount - first)), .sum = parts.view()},
          support::test_stream(pool));
    }
    EXPECT_EQ(parts[0], want);
  }
}

// On a GPU as on a CPU: runs are continued on either, and their norms decide what is clipped.
TEST(SumSquaresBits, AreThoseOfBlocksAddedByHalvesInGroups) {
  constexpr std::int64_t kCount = kSumGroup + 5 * kSumBlock + 77;
  ThreadPool pool(2);
  SampleTensor x(DType::bf16, {kCount}), sum(DType::f64, {1});
  x.fill_normal(1);
  sum_squares({.x = x.view(), .sum = sum.view()}, support::test_stream(pool));
  const auto by_halves = [](std::vector<double> sums) {
    for (std::size_t n = sums.size() / 2; n > 0; n /= 2) {
      for (std::size_t k = 0; k < n; ++k) sums[k] += sums[k + n];
    }
    return sums[0];
  };
  double want = 0;
  for (std::int64_t group = 0; group < kCount; group += kSumGroup) {
    std::vector<double> blocks(kGroupBlocks);
    for (std::int64_t b = 0; b < kGroupBlocks; ++b) {
      std::vector<double> pieces(kSumPieces);
      for (std::int64_t p = 0; p < kSumPieces; ++p) {
        std::vector<double> sums(16);
        const std::int64_t first = group + b * kSumBlock + p * kSumPiece;
        for (std::int64_t i = first; i < std::min(kCount, first + kSumPiece); ++i) {
          sums[to_size(i % 16)] += x[i] * x[i];
        }
        pieces[to_size(p)] = by_halves(sums);
      }
      blocks[to_size(b)] = by_halves(pieces);
    }
    want += by_halves(blocks);
  }
  EXPECT_EQ(sum[0], want);
}

TEST(SumSquaresBits, AreThoseOfAnyPlaceAndSize) {
  ThreadPool pool(1);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const std::int64_t n : {1, 7, 9, 16, 31, 1000, 1023, 1025, 1300, 70001}) {
      std::vector<double> sums;
      for (const std::int64_t start : {0, 1}) {
        SampleTensor x(dtype, {n}, {.start = start}), sum(DType::f64, {1});
        x.fill_normal(1);
        x.set(n / 2, 0);
        x.set(n / 3, 0x1p-130);  // not normal
        sum.set(0, 3);
        sum_squares({.x = x.view(), .sum = sum.view()}, support::test_stream(pool));
        sums.push_back(sum[0]);
      }
      EXPECT_EQ(sums[0], sums[1]) << n;
    }
  }
}

TEST(SumSquaresBits, OfManyTensorsAreThoseOfOneAfterTheOther) {
  ThreadPool pool(2);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    std::vector<SampleTensor> tensors;
    std::vector<ConstTensorView> views;
    SampleTensor each(DType::f64, {1}), all(DType::f64, {1});
    for (SampleTensor* sum : {&each, &all}) sum->set(0, 0.3);
    for (const std::int64_t n : {5, 0, 70001, 1024, 1, 33000, 2 * 32768, 99}) {
      tensors.emplace_back(dtype, Shape{n}, SampleTensor::Layout{.start = n % 2});
      tensors.back().fill_normal(static_cast<std::uint32_t>(n));
    }
    for (const SampleTensor& t : tensors) {
      views.push_back(t.view());
      sum_squares({.x = t.view(), .sum = each.view()}, support::test_stream(pool));
    }
    sum_squares(views, all.view(), support::test_stream(pool));
    EXPECT_EQ(each[0], all[0]) << static_cast<int>(dtype);
  }
}

TEST(SumSquaresBits, AreNoNumberWhereAnElementIsNone) {
  ThreadPool pool(1);
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const DType dtype : {DType::f32, DType::bf16}) {
    SampleTensor x(dtype, {3000}), infinite(DType::f64, {1}), none(DType::f64, {1});
    x.fill_normal(1);
    x.set(100, -kInfinity);
    sum_squares({.x = x.view(), .sum = infinite.view()}, support::test_stream(pool));
    EXPECT_EQ(infinite[0], kInfinity);
    x.set(2500, std::numeric_limits<double>::quiet_NaN());
    sum_squares({.x = x.view(), .sum = none.view()}, support::test_stream(pool));
    EXPECT_TRUE(std::isnan(none[0]));
  }
}

float factor_of(double sum, double max_norm) {
  ThreadPool pool(1);
  SampleTensor s(DType::f64, {1}), factor(DType::f32, {1}), norm(DType::f32, {1});
  s.set(0, sum);
  clip_factor({.sum = s.view(), .max_norm = max_norm, .factor = factor.view(), .norm = norm.view()},
              support::test_stream(pool));
  EXPECT_TRUE(std::isnan(sum) || norm[0] == static_cast<float>(std::sqrt(sum)));
  SampleTensor alone(DType::f32, {1});
  clip_factor({.sum = s.view(), .max_norm = max_norm, .factor = alone.view(), .norm = {}},
              support::test_stream(pool));
  EXPECT_EQ(alone.bytes(), factor.bytes());
  return static_cast<float>(factor[0]);
}

TEST(ClipFactorOnCpu, LimitsTheNorm) {
  EXPECT_EQ(factor_of(9, 1), static_cast<float>(ref::clip_factor(9, 1)));
  EXPECT_EQ(factor_of(9, 1000), 1);
  EXPECT_EQ(factor_of(0, 1), 1);
  EXPECT_EQ(factor_of(1, 1), static_cast<float>(1 / (1 + 1e-6)));
  EXPECT_EQ(factor_of(1e30, 0), 1);
  EXPECT_EQ(factor_of(1e30, -1), 1);
}

TEST(ClipFactorOnCpu, DoesNotHideANormThatIsNotANumber) {
  EXPECT_TRUE(std::isnan(factor_of(std::numeric_limits<double>::quiet_NaN(), 1)));
  EXPECT_EQ(factor_of(std::numeric_limits<double>::infinity(), 1), 0);
}

TEST(ScaleByOnCpu, MultipliesEveryElement) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const std::int64_t n : {0, 1, 9, 20011}) {
      ThreadPool pool(2);
      SampleTensor x(dtype, {n}, {.start = 1}), factor(DType::f32, {1});
      x.fill_normal(1);
      factor.set(0, 0.3);
      SampleTensor want = x;
      for (std::int64_t i = 0; i < n; ++i) {
        want.set(i, static_cast<float>(x[i]) * static_cast<float>(factor[0]));
      }
      scale_by({.factor = factor.view(), .x = x.view()}, support::test_stream(pool));
      EXPECT_TRUE(x.bytes() == want.bytes());
    }
  }
}

float limit_of(const SampleTensor& ga, const SampleTensor& gb, double scale, double max_norm,
               int threads = 2) {
  ThreadPool pool(threads);
  SampleTensor factor(DType::f32, {1});
  limit_factor({.ga = ga.view(),
                .gb = gb.view(),
                .scale = scale,
                .max_norm = max_norm,
                .factor = factor.view()},
               support::test_stream(pool));
  return static_cast<float>(factor[0]);
}

TEST(LimitFactor, IsTheRootOfTheLimitOverTheNorm) {
  for (const std::int64_t rank : {1, 3, 16, 190}) {  // 190^2: more than one block of a sum
    SampleTensor ga(DType::f32, {rank, rank}), gb(DType::f32, {rank, rank}, {.start = 1});
    ga.fill_normal(1);
    gb.fill_normal(2);
    double sum = 0;
    for (std::int64_t i = 0; i < ga.size(); ++i) {
      if (ga[i] * gb[i] < 0) gb.set(i, -gb[i]);
      sum += ga[i] * gb[i];
    }
    const double norm = 0.5 * std::sqrt(sum);
    const float limited = limit_of(ga, gb, 0.5, norm / 3);
    EXPECT_NEAR(limited, ref::limit_factor(norm, norm / 3), 1e-7) << rank;
    for (const int threads : {1, 3}) EXPECT_EQ(limit_of(ga, gb, 0.5, norm / 3, threads), limited);
    EXPECT_EQ(limit_of(ga, gb, 0.5, norm * 1.001), 1) << rank;
  }
}

TEST(LimitFactor, LeavesANormThatRoundingMadeImaginary) {
  SampleTensor ga(DType::f32, {1, 1}), gb(DType::f32, {1, 1});
  ga.set(0, 1e-9);
  gb.set(0, -1);
  EXPECT_EQ(limit_of(ga, gb, 1, 1e-30), 1);
  gb.set(0, 0);
  EXPECT_EQ(limit_of(ga, gb, 1, 1e-30), 1);
}

TEST(GlobalNormGolden, ClipsLikeTheReferenceImplementation) {
  const GoldenFile golden("optimizer");
  ThreadPool pool(2);
  for (std::size_t c = 0; c < 2; ++c) {
    const std::string clip = "clip" + std::to_string(c);
    SampleTensor sum(DType::f64, {1}), factor(DType::f32, {1}), norm(DType::f32, {1});
    std::vector<SampleTensor> grads;
    for (int j = 0; j < 3; ++j) {
      grads.push_back(golden["in." + clip + ".grad." + std::to_string(j)]);
      sum_squares({.x = grads.back().view(), .sum = sum.view()}, support::test_stream(pool));
    }
    clip_factor({.sum = sum.view(),
                 .max_norm = golden.config().at("max_norms").at(c),
                 .factor = factor.view(),
                 .norm = norm.view()},
                support::test_stream(pool));
    const std::string norm_name = "out." + clip + ".norm";
    EXPECT_NEAR(norm[0], golden[norm_name][0], golden.tolerance(norm_name));
    for (int j = 0; j < 3; ++j) {
      SampleTensor& g = grads[to_size(j)];
      scale_by({.factor = factor.view(), .x = g.view()}, support::test_stream(pool));
      const std::string name = "out." + clip + ".grad." + std::to_string(j);
      const SampleTensor want = golden[name];
      for (std::int64_t i = 0; i < g.size(); ++i) {
        EXPECT_NEAR(g[i], want[i], golden.tolerance(name)) << name << " " << i;
      }
    }
  }
}

TEST(GlobalNormChecks, RefuseWhatDoesNotFit) {
  ThreadPool pool(1);
  SampleTensor x(DType::f32, {3, 4}), gaps(DType::f32, {3, 4}, {.row_padding = 1});
  SampleTensor half(DType::f16, {4}), sum(DType::f64, {1}), narrow(DType::f32, {1});
  const auto sum_of = [&](SampleTensor& from, SampleTensor& to) {
    sum_squares({.x = from.view(), .sum = to.view()}, support::test_stream(pool));
  };
  EXPECT_NO_THROW(sum_of(x, sum));
  EXPECT_THROW(sum_of(gaps, sum), Error);
  EXPECT_THROW(sum_of(half, sum), Error);
  EXPECT_THROW(sum_of(x, narrow), Error);
  EXPECT_THROW(scale_by({.factor = sum.view(), .x = x.view()}, support::test_stream(pool)), Error);
  SampleTensor gram(DType::f32, {3, 3}), other(DType::f32, {2, 2});
  EXPECT_NO_THROW(limit_of(gram, gram, 1, 1));
  EXPECT_THROW(limit_of(gram, other, 1, 1), Error);
  EXPECT_THROW(limit_of(x, x, 1, 1), Error);
  EXPECT_THROW(limit_of(gram, gram, 1, 0), Error);
  EXPECT_THROW(
      clip_factor({.sum = narrow.view(), .max_norm = 1, .factor = narrow.view(), .norm = {}}, {}),
      Error);
}

TEST(GlobalNormRecorded, ClipsOverTwoTensors) {
  const SampleTensor a = SampleTensor(DType::f32, {4, 5}).fill_normal(1);
  const SampleTensor b = SampleTensor(DType::bf16, {7}).fill_normal(2);
  RecordedProgram p;
  const Buffer ga = p.input("a", a), gb = p.input("b", b);
  const Buffer sum = p.input("sum", SampleTensor(DType::f64, {1}));
  const Buffer factor = p.pb.temp("factor", {1}, DType::f32);
  const Buffer norm = p.pb.temp("norm", {1}, DType::f32);
  sum_squares(p.pb, std::vector{ga, gb}, sum,
              sum_squares_scratch(p.pb, sum));  // of two types: one after the other
  clip_factor(p.pb, sum, 0.5, factor, norm);
  scale_by(p.pb, factor, ga);
  EXPECT_EQ(p.instruction(0).reads, (std::vector{ga, sum}));
  EXPECT_EQ(p.results(0), std::vector{sum});
  EXPECT_EQ(p.instruction(2).reads, std::vector{sum});
  EXPECT_EQ(p.instruction(2).writes, (std::vector{factor, norm}));
  EXPECT_EQ(p.instruction(3).reads, (std::vector{factor, ga}));
  EXPECT_EQ(p.instruction(3).writes, std::vector{ga});
  p.run();
  const double want = ref::sum_squares(a.values()) + ref::sum_squares(b.values());
  const double scale = ref::clip_factor(want, 0.5);
  EXPECT_NEAR(p.value(norm)[0], std::sqrt(want), 1e-6);
  for (std::int64_t i = 0; i < a.size(); ++i) {
    EXPECT_NEAR(p.value(ga)[i], a[i] * scale, 1e-6);
  }
}

TEST(GlobalNormRecorded, SumsAsManyTensorsAtOnceAsALaunchTakes) {
  RecordedProgram p;
  const Buffer sum = p.input("sum", SampleTensor(DType::f64, {1}));
  std::vector<Buffer> gradients;
  double want = 0;
  for (int k = 0; k < kSquareTensors + 2; ++k) {
    const SampleTensor g = SampleTensor(DType::f32, {3}).fill_normal(static_cast<std::uint32_t>(k));
    gradients.push_back(p.input("g", g));
    want += ref::sum_squares(g.values());
  }
  sum_squares(p.pb, gradients, sum, sum_squares_scratch(p.pb, sum));
  EXPECT_EQ(p.instruction(0).reads.size(), kSquareTensors + 1u);
  EXPECT_EQ(p.instruction(1).reads,
            (std::vector{gradients[kSquareTensors], gradients.back(), sum}));
  p.run();
  EXPECT_NEAR(p.value(sum)[0], want, want * 1e-12);
}

struct Pair {
  SampleTensor a, b;
};

Pair limited(const Pair& from, double scale, double max_norm, int threads = 2) {
  RecordedProgram p(threads);
  const Buffer a = p.input("a", from.a), b = p.input("b", from.b);
  limit_norm(p.pb, a, b, scale, max_norm);
  p.run();
  return {p.value(a), p.value(b)};
}

TEST(LimitNormRecorded, BringsAPairToItsLimitAndLeavesOthers) {
  constexpr double kScale = 0.25;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const auto& [rank, in, out] : {std::array<std::int64_t, 3>{1, 1, 1},
                                        {3, 7, 5},
                                        {4, 128, 160},
                                        {16, 300, 520},
                                        {9, 4, 6}}) {
      const Pair from = {SampleTensor(dtype, {rank, in}).fill_normal(1),
                         SampleTensor(dtype, {out, rank}).fill_normal(2)};
      const auto norm_of = [&](const Pair& p) {
        return ref::product_norm(p.a.values(), p.b.values(), to_size(rank), kScale);
      };
      const double norm = norm_of(from), most = norm / 7, by = ref::limit_factor(norm, most);
      const Pair to = limited(from, kScale, most);
      // Of bf16 factors every element is rounded once more.
      const double narrow = dtype == DType::bf16 ? 0x1p-8 : 0;
      EXPECT_NEAR(norm_of(to), most, most * (1e-5 + 2 * narrow)) << name_of(dtype) << " " << rank;
      for (std::int64_t i = 0; i < from.a.size(); ++i) {
        const double want = from.a[i] * by;
        ASSERT_NEAR(to.a[i], want, std::abs(want) * (1e-5 + narrow))
            << name_of(dtype) << " " << rank;
      }
      for (std::int64_t i = 0; i < from.b.size(); ++i) {
        const double want = from.b[i] * by;
        ASSERT_NEAR(to.b[i], want, std::abs(want) * (1e-5 + narrow))
            << name_of(dtype) << " " << rank;
      }
      for (const int threads : {1, 3}) {
        const Pair again = limited(from, kScale, most, threads);
        EXPECT_TRUE(again.a.bytes() == to.a.bytes() && again.b.bytes() == to.b.bytes());
      }
      const Pair within = limited(from, kScale, norm * 1.001);
      EXPECT_TRUE(within.a.bytes() == from.a.bytes() && within.b.bytes() == from.b.bytes());
    }
  }
}

TEST(LimitNormRecorded, LeavesAPairThatIsZeroAsItBegins) {
  const Pair from = {SampleTensor(DType::f32, {4, 20}).fill_normal(1),
                     SampleTensor(DType::f32, {30, 4})};
  const Pair to = limited(from, 1, 1e-20);
  EXPECT_TRUE(to.a.bytes() == from.a.bytes() && to.b.bytes() == from.b.bytes());
}

}  // namespace
}  // namespace ballast::ops::global_norm_test
