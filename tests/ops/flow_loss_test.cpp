#include "ops/flow_loss.h"

#include <gtest/gtest.h>

#include <limits>

#include "core/to_size.h"
#include "ops/kernels/ordered_sum.h"
#include "tests/ref/flow_loss.h"
#include "tests/support/finite_differences.h"
#include "tests/support/golden_file.h"
#include "tests/support/recorded_program.h"
#include "tests/support/test_device.h"

namespace ballast::ops::flow_loss_test {
namespace {

using support::GoldenFile;
using support::RecordedProgram;
using support::SampleTensor;

constexpr LossFunction kMse = {};
constexpr LossFunction kHuber = {LossKind::huber, 0.75};
constexpr LossFunction kSmooth = {LossKind::smooth_l1, 0.5};

SampleTensor scalar(DType dtype, double value) {
  SampleTensor t(dtype, {1});
  t.set(0, value);
  return t;
}

TEST(FlowLossRef, BackwardMatchesFiniteDifferences) {
  const SampleTensor pred = SampleTensor(DType::f64, {12}).fill_normal(1);
  const SampleTensor target = SampleTensor(DType::f64, {12}).fill_normal(2);
  for (const LossFunction& rho : {kMse, kHuber, kSmooth}) {
    const ref::FlowLoss f = {.rho = rho, .weight = 0.25, .mask = {1, 0, 0.5, 2}};
    const auto loss = [&](const std::vector<double>& at) {
      return ref::flow_loss(f, at, target.values());
    };
    const std::vector<double> numeric = support::numeric_gradient(loss, pred.values());
    const std::vector<double> exact = ref::flow_loss_backward(f, pred.values(), target.values());
    for (std::size_t i = 0; i < exact.size(); ++i) EXPECT_NEAR(exact[i], numeric[i], 1e-9) << i;
  }
}

// Values of the definitions, by hand.
TEST(FlowLossRef, HasTheValuesOfTheDefinitions) {
  EXPECT_EQ(ref::loss_of({LossKind::huber, 2}, -1.0), 0.5);
  EXPECT_EQ(ref::loss_of({LossKind::huber, 2}, 5.0), 8.0);
  EXPECT_EQ(ref::loss_of({LossKind::smooth_l1, 2}, 1.0), 0.25);
  EXPECT_EQ(ref::loss_of({LossKind::smooth_l1, 2}, -5.0), 4.0);
}

class FlowLossOnCpu
    : public testing::TestWithParam<std::tuple<std::int64_t, DType, DType, LossKind>> {};

TEST_P(FlowLossOnCpu, MatchesReference) {
  const auto [n, pred_type, dpred_type, kind] = GetParam();
  ThreadPool pool(2);
  SampleTensor pred(pred_type, {n}, {.start = 1}), target(DType::f32, {n}, {.start = 3});
  SampleTensor dpred(dpred_type, {n}, {.start = 1}), loss(DType::f64, {1});
  pred.fill_normal(1);
  target.fill_normal(2);
  loss.set(0, 0.5);
  const double weight = 1.0 / static_cast<double>(std::max<std::int64_t>(n, 1));
  const LossFunction rho = {kind, 0.75};
  flow_loss({.pred = pred.view(),
             .target = target.view(),
             .rho = rho,
             .weight = weight,
             .loss = loss.view(),
             .dpred = dpred.view()},
            support::test_stream(pool));
  // Each f32 difference is off by one rounding at most, rho by three; the f64 sum adds nothing.
  const ref::FlowLoss f = {.rho = rho, .weight = weight};
  const double want = ref::flow_loss(f, pred.values(), target.values());
  EXPECT_NEAR(loss[0], 0.5 + want, 3.01 * 0x1p-24 * want + 1e-15);
  const std::vector<double> grad = ref::flow_loss_backward(f, pred.values(), target.values());
  for (std::int64_t i = 0; i < n; ++i) {
    const double g = grad[to_size(i)];
    // Difference, slope and product are rounded to f32, the result to its own dtype.
    EXPECT_NEAR(dpred[i], g, std::abs(g) * (3.01 * 0x1p-24 + 1.01 * support::rounding(dpred_type)));
  }
  EXPECT_TRUE(dpred.padding_untouched());

  SampleTensor only_loss = scalar(DType::f64, 0.5);
  flow_loss({.pred = pred.view(),
             .target = target.view(),
             .rho = rho,
             .weight = weight,
             .loss = only_loss.view()},
            support::test_stream(pool));
  EXPECT_EQ(only_loss[0], loss[0]);
}

INSTANTIATE_TEST_SUITE_P(
    Sizes, FlowLossOnCpu,
    testing::Combine(testing::Values(0, 1, 3, 15, 16, 33, 1000, kSumBlock, 2 * kSumBlock + 77),
                     testing::Values(DType::f32, DType::bf16),
                     testing::Values(DType::f32, DType::bf16),
                     testing::Values(LossKind::mse, LossKind::huber, LossKind::smooth_l1)));

// Planes of 1, 3, 35 and 20000 elements: mask rows end inside vectors and inside sum blocks.
TEST(FlowLossMask, WeighsEachPlaceInEveryChannel) {
  ThreadPool pool(2);
  for (const Shape& plane : {Shape{1, 1, 1}, Shape{1, 1, 3}, Shape{1, 5, 7}, Shape{2, 100, 100}}) {
    const Shape shape = {5, plane[0], plane[1], plane[2]};
    SampleTensor pred = SampleTensor(DType::f32, shape).fill_normal(1);
    const SampleTensor target = SampleTensor(DType::f32, shape).fill_normal(2);
    SampleTensor mask = SampleTensor(DType::f32, plane, {.start = 1}).fill_normal(3);
    mask.set(0, 0);
    const SampleTensor half = scalar(DType::f32, 0.5);
    for (const LossFunction& rho : {kMse, kHuber, kSmooth}) {
      SampleTensor dpred(DType::f32, shape), loss(DType::f64, {1});
      flow_loss({.pred = pred.view(),
                 .target = target.view(),
                 .mask = mask.view(),
                 .sample_weight = half.view(),
                 .rho = rho,
                 .weight = 0.25,
                 .loss = loss.view(),
                 .dpred = dpred.view()},
                support::test_stream(pool));
      const ref::FlowLoss f = {.rho = rho, .weight = 0.125, .mask = mask.values()};
      const double size = 0.125 * 2 * static_cast<double>(pred.size());  // of the terms, about
      EXPECT_NEAR(loss[0], ref::flow_loss(f, pred.values(), target.values()),
                  8 * 0x1p-24 * size + 1e-15);
      const std::vector<double> grad = ref::flow_loss_backward(f, pred.values(), target.values());
      for (std::int64_t i = 0; i < pred.size(); ++i) {
        const double g = grad[to_size(i)];
        ASSERT_NEAR(dpred[i], g, std::abs(g) * 4.01 * 0x1p-24) << i;
      }
    }
  }
}

TEST(FlowLossMask, OfOnesChangesNoBit) {
  ThreadPool pool(2);
  const SampleTensor pred = SampleTensor(DType::f32, {3, 2, 100, 101}).fill_normal(1);
  const SampleTensor target = SampleTensor(DType::f32, pred.shape()).fill_normal(2);
  SampleTensor mask(DType::f32, {2, 100, 101});
  for (std::int64_t i = 0; i < mask.size(); ++i) mask.set(i, 1);
  const SampleTensor one = scalar(DType::f32, 1);
  for (const LossFunction& rho : {kMse, kHuber, kSmooth}) {
    SampleTensor plain(DType::f64, {1}), masked(DType::f64, {1});
    SampleTensor dplain(DType::f32, pred.shape()), dmasked(DType::f32, pred.shape());
    flow_loss({.pred = pred.view(),
               .target = target.view(),
               .rho = rho,
               .weight = 1e-3,
               .loss = plain.view(),
               .dpred = dplain.view()},
              support::test_stream(pool));
    flow_loss({.pred = pred.view(),
               .target = target.view(),
               .mask = mask.view(),
               .sample_weight = one.view(),
               .rho = rho,
               .weight = 1e-3,
               .loss = masked.view(),
               .dpred = dmasked.view()},
              support::test_stream(pool));
    EXPECT_EQ(plain[0], masked[0]);
    EXPECT_TRUE(dplain.bytes() == dmasked.bytes());
  }
}

// The order is part of the contract: checkpoints and golden runs compare losses bit by bit.
TEST(FlowLossBits, SumLanesAndPiecesByHalvesAndBlocksInOrder) {
  constexpr std::int64_t kCount = 2 * kSumBlock + 1237;
  ThreadPool pool(2);
  const SampleTensor pred = SampleTensor(DType::f32, {kCount}).fill_normal(1);
  const SampleTensor target = SampleTensor(DType::f32, {kCount}).fill_normal(2);
  SampleTensor loss(DType::f64, {1});
  flow_loss({.pred = pred.view(), .target = target.view(), .weight = 1e-5, .loss = loss.view()},
            support::test_stream(pool));
  double want = 0;
  for (std::int64_t begin = 0; begin < kCount; begin += kSumBlock) {
    const auto by_halves = [](double* sums, std::int64_t n) {
      while ((n /= 2) > 0) {
        for (std::int64_t k = 0; k < n; ++k) sums[k] += sums[k + n];
      }
      return sums[0];
    };
    double pieces[kSumPieces] = {};
    for (std::int64_t p = 0; p < kSumPieces; ++p) {
      double sums[16] = {};
      const std::int64_t first = begin + p * kSumPiece;
      for (std::int64_t i = first; i < std::min(kCount, first + kSumPiece); ++i) {
        const double e = static_cast<float>(pred[i] - target[i]);
        sums[i % 16] += e * e;
      }
      pieces[p] = 1e-5 * by_halves(sums, 16);
    }
    want += by_halves(pieces, kSumPieces);
  }
  EXPECT_EQ(loss[0], want);
}

TEST(FlowLossBits, DependNeitherOnThreadsNorOnAlignmentNorOnTheCut) {
  constexpr std::int64_t kCount = 130 * kSumBlock + 1234;  // more blocks than are summed in one go
  support::DeviceVector<std::byte> dpred_bytes;
  double whole = 0;
  for (const int threads : {1, 2, 3}) {
    ThreadPool pool(threads);
    SampleTensor pred(DType::bf16, {kCount}, {.start = threads});
    SampleTensor target(DType::f32, {kCount}, {.start = 3 - threads});
    SampleTensor dpred(DType::f32, {kCount}), loss(DType::f64, {1}), parts(DType::f64, {1});
    pred.fill_normal(1);
    target.fill_normal(2);
    flow_loss({.pred = pred.view(),
               .target = target.view(),
               .rho = kHuber,
               .weight = 1e-5,
               .loss = loss.view(),
               .dpred = dpred.view()},
              support::test_stream(pool));
    if (threads == 1) {
      whole = loss[0];
      dpred_bytes = dpred.bytes();
    }
    EXPECT_EQ(loss[0], whole);
    EXPECT_TRUE(dpred.bytes() == dpred_bytes);
    for (std::int64_t first = 0; first < kCount; first += 3 * kSumBlock) {
      const std::int64_t n = std::min(3 * kSumBlock, kCount - first);
      flow_loss({.pred = pred.view().rows(first, n),
                 .target = target.view().rows(first, n),
                 .rho = kHuber,
                 .weight = 1e-5,
                 .loss = parts.view()},
                support::test_stream(pool));
    }
    EXPECT_EQ(parts[0], whole);
  }
}

TEST(FlowLoss, PassesNanOnAndMayWriteItsGradientOverTheInput) {
  ThreadPool pool(1);
  SampleTensor pred = SampleTensor(DType::f32, {40}).fill_normal(1);
  const SampleTensor target = SampleTensor(DType::f32, {40}).fill_normal(2);
  const std::vector<double> before = pred.values();
  for (const LossFunction& rho : {kMse, kHuber, kSmooth}) {
    pred.fill(before);
    pred.set(17, std::numeric_limits<double>::quiet_NaN());
    SampleTensor loss(DType::f64, {1});
    flow_loss({.pred = pred.view(),
               .target = target.view(),
               .rho = rho,
               .loss = loss.view(),
               .dpred = pred.view()},
              support::test_stream(pool));
    EXPECT_TRUE(std::isnan(loss[0]));
    const std::vector<double> grad = ref::flow_loss_backward({rho}, before, target.values());
    for (std::int64_t i = 0; i < 40; ++i) {
      if (i == 17) {
        EXPECT_TRUE(std::isnan(pred[i]));
      } else {
        EXPECT_NEAR(pred[i], grad[to_size(i)], 1e-6);
      }
    }
  }
}

TEST(FlowLossChecks, RefuseWhatDoesNotFit) {
  ThreadPool pool(1);
  const SampleTensor pred(DType::f32, {2, 3, 4, 5});
  const auto run = [&](const SampleTensor& mask, const SampleTensor& weight, double delta) {
    SampleTensor loss(DType::f64, {1});
    flow_loss({.pred = pred.view(),
               .target = pred.view(),
               .mask = mask.view(),
               .sample_weight = weight.view(),
               .rho = {LossKind::huber, delta},
               .loss = loss.view()},
              support::test_stream(pool));
  };
  const SampleTensor mask(DType::f32, {3, 4, 5}), one = scalar(DType::f32, 1);
  EXPECT_NO_THROW(run(mask, one, 1));
  EXPECT_THROW(run(SampleTensor(DType::f32, {4, 3, 5}), one, 1), Error);
  EXPECT_THROW(run(SampleTensor(DType::bf16, {3, 4, 5}), one, 1), Error);
  EXPECT_THROW(run(mask, SampleTensor(DType::f32, {2}), 1), Error);
  EXPECT_THROW(run(mask, one, 0), Error);
}

// One call per sample, as training does it.
TEST(FlowLossGolden, MatchesTheReferenceImplementation) {
  const GoldenFile golden("flow_matching");
  const SampleTensor pred = golden["in.pred"], target = golden["out.target"];
  const SampleTensor want = golden["out.grad_pred"], per_sample = golden["out.loss_per_sample"];
  ThreadPool pool(2);
  SampleTensor dpred(DType::f32, pred.shape()), mean(DType::f64, {1});
  const std::int64_t n = pred.size() / 3;
  for (std::int64_t s = 0; s < 3; ++s) {
    SampleTensor one(DType::f64, {1});
    flow_loss({.pred = pred.view().rows(s, 1),
               .target = target.view().rows(s, 1),
               .weight = 1.0 / static_cast<double>(n),
               .loss = one.view()},
              support::test_stream(pool));
    EXPECT_NEAR(one[0], per_sample[s], golden.tolerance("out.loss_per_sample"));
    flow_loss({.pred = pred.view().rows(s, 1),
               .target = target.view().rows(s, 1),
               .weight = 1.0 / static_cast<double>(3 * n),
               .loss = mean.view(),
               .dpred = dpred.view().rows(s, 1)},
              support::test_stream(pool));
  }
  EXPECT_NEAR(mean[0], golden["out.loss"][0], golden.tolerance("out.loss"));
  for (std::int64_t i = 0; i < dpred.size(); ++i) {
    EXPECT_NEAR(dpred[i], want[i], golden.tolerance("out.grad_pred")) << i;
  }
}

TEST(FlowLossRecorded, AddsToTheLossAndMayLeaveOperandsOut) {
  const SampleTensor x = SampleTensor(DType::f32, {3, 5}).fill_normal(1);
  const SampleTensor y = SampleTensor(DType::f32, {3, 5}).fill_normal(2);
  const SampleTensor m = SampleTensor(DType::f32, {5}).fill_normal(3);
  RecordedProgram p;
  const Buffer pred = p.input("pred", x), target = p.input("target", y), mask = p.input("mask", m);
  const Buffer loss = p.input("loss", scalar(DType::f64, 2));
  const Buffer weight = p.input("weight", scalar(DType::f32, 3));
  const Buffer dpred = p.pb.temp("dpred", {3, 5}, DType::bf16);
  flow_loss(p.pb, {.pred = pred, .target = target, .loss = loss, .dpred = dpred}, {.weight = 0.5});
  flow_loss(p.pb,
            {.pred = pred, .target = target, .mask = mask, .sample_weight = weight, .loss = loss},
            {.rho = kHuber, .weight = 0.5});
  EXPECT_EQ(p.instruction(0).reads, (std::vector{pred, target, loss}));
  EXPECT_EQ(p.results(0), (std::vector{loss, dpred}));
  EXPECT_EQ(p.instruction(1).reads, (std::vector{pred, target, mask, weight, loss}));
  EXPECT_EQ(p.results(1), std::vector{loss});
  p.run();
  const double first = ref::flow_loss({.weight = 0.5}, x.values(), y.values());
  const double second =
      ref::flow_loss({.rho = kHuber, .weight = 1.5, .mask = m.values()}, x.values(), y.values());
  EXPECT_NEAR(p.value(loss)[0], 2 + first + second, 1e-5);
}

}  // namespace
}  // namespace ballast::ops::flow_loss_test
