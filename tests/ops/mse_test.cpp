#include "ops/mse.h"

#include <gtest/gtest.h>

#include "ops/ordered_sum.h"
#include "tests/ref/mse.h"
#include "tests/support/finite_differences.h"
#include "tests/support/golden_file.h"
#include "tests/support/recorded_program.h"

namespace ballast::ops {
namespace {

using support::GoldenFile;
using support::RecordedProgram;
using support::SampleTensor;

TEST(MseRef, BackwardMatchesFiniteDifferences) {
  const SampleTensor pred = SampleTensor(DType::f64, {12}).fill_normal(1);
  const SampleTensor target = SampleTensor(DType::f64, {12}).fill_normal(2);
  const auto loss = [&](const std::vector<double>& at) {
    return ref::mse(at, target.values(), 0.25);
  };
  const std::vector<double> numeric = support::numeric_gradient(loss, pred.values());
  const std::vector<double> exact = ref::mse_backward(pred.values(), target.values(), 0.25);
  for (std::size_t i = 0; i < exact.size(); ++i) EXPECT_NEAR(exact[i], numeric[i], 1e-9) << i;
}

class MseOnCpu : public testing::TestWithParam<std::tuple<std::int64_t, DType, DType>> {};

TEST_P(MseOnCpu, MatchesReference) {
  const auto [n, pred_type, dpred_type] = GetParam();
  ThreadPool pool(2);
  SampleTensor pred(pred_type, {n}, {.start = 1}), target(DType::f32, {n}, {.start = 3});
  SampleTensor dpred(dpred_type, {n}, {.start = 1}), loss(DType::f64, {1});
  pred.fill_normal(1);
  target.fill_normal(2);
  loss.set(0, 0.5);
  const double weight = 1.0 / static_cast<double>(std::max<std::int64_t>(n, 1));
  mse({.pred = pred.view(),
       .target = target.view(),
       .weight = weight,
       .loss = loss.view(),
       .dpred = dpred.view()},
      {.pool = &pool});
  // Each f32 difference is off by one rounding at most, its square by two; the f64 sum adds
  // nothing.
  const double want = ref::mse(pred.values(), target.values(), weight);
  EXPECT_NEAR(loss[0], 0.5 + want, 2.01 * 0x1p-24 * want + 1e-15);
  const std::vector<double> grad = ref::mse_backward(pred.values(), target.values(), weight);
  for (std::int64_t i = 0; i < n; ++i) {
    const double g = grad[static_cast<std::size_t>(i)];
    // Difference, slope and product are rounded to f32, the result to its own dtype.
    EXPECT_NEAR(dpred[i], g, std::abs(g) * (3.01 * 0x1p-24 + 1.01 * support::rounding(dpred_type)));
  }
  EXPECT_TRUE(dpred.padding_untouched());

  SampleTensor only_loss(DType::f64, {1});
  only_loss.set(0, 0.5);
  mse({.pred = pred.view(),
       .target = target.view(),
       .weight = weight,
       .loss = only_loss.view(),
       .dpred = {}},
      {.pool = &pool});
  EXPECT_EQ(only_loss[0], loss[0]);
}

INSTANTIATE_TEST_SUITE_P(Sizes, MseOnCpu,
                         testing::Combine(testing::Values(0, 1, 3, 15, 16, 33, 1000, kSumBlock,
                                                          2 * kSumBlock + 77),
                                          testing::Values(DType::f32, DType::bf16),
                                          testing::Values(DType::f32, DType::bf16)));

TEST(MseBits, DependNeitherOnThreadsNorOnAlignmentNorOnTheCut) {
  constexpr std::int64_t kCount = 130 * kSumBlock + 1234;  // more blocks than are summed in one go
  std::vector<std::byte> dpred_bytes;
  double whole = 0;
  for (const int threads : {1, 2, 3}) {
    ThreadPool pool(threads);
    SampleTensor pred(DType::bf16, {kCount}, {.start = threads});
    SampleTensor target(DType::f32, {kCount}, {.start = 3 - threads});
    SampleTensor dpred(DType::f32, {kCount}), loss(DType::f64, {1}), parts(DType::f64, {1});
    pred.fill_normal(1);
    target.fill_normal(2);
    mse({.pred = pred.view(),
         .target = target.view(),
         .weight = 1e-5,
         .loss = loss.view(),
         .dpred = dpred.view()},
        {.pool = &pool});
    if (threads == 1) {
      whole = loss[0];
      dpred_bytes = dpred.bytes();
    }
    EXPECT_EQ(loss[0], whole);
    EXPECT_TRUE(dpred.bytes() == dpred_bytes);
    for (std::int64_t first = 0; first < kCount; first += 3 * kSumBlock) {
      const std::int64_t n = std::min(3 * kSumBlock, kCount - first);
      mse({.pred = pred.view().rows(first, n),
           .target = target.view().rows(first, n),
           .weight = 1e-5,
           .loss = parts.view(),
           .dpred = {}},
          {.pool = &pool});
    }
    EXPECT_EQ(parts[0], whole);
  }
}

// One call per sample, as training does it.
TEST(MseGolden, MatchesTheReferenceImplementation) {
  const GoldenFile golden("flow_matching");
  const SampleTensor pred = golden["in.pred"], target = golden["out.target"];
  const SampleTensor want = golden["out.grad_pred"], per_sample = golden["out.loss_per_sample"];
  ThreadPool pool(2);
  SampleTensor dpred(DType::f32, pred.shape()), mean(DType::f64, {1});
  const std::int64_t n = pred.size() / 3;
  for (std::int64_t s = 0; s < 3; ++s) {
    SampleTensor one(DType::f64, {1});
    mse({.pred = pred.view().rows(s, 1),
         .target = target.view().rows(s, 1),
         .weight = 1.0 / static_cast<double>(n),
         .loss = one.view(),
         .dpred = {}},
        {.pool = &pool});
    EXPECT_NEAR(one[0], per_sample[s], golden.tolerance("out.loss_per_sample"));
    mse({.pred = pred.view().rows(s, 1),
         .target = target.view().rows(s, 1),
         .weight = 1.0 / static_cast<double>(3 * n),
         .loss = mean.view(),
         .dpred = dpred.view().rows(s, 1)},
        {.pool = &pool});
  }
  EXPECT_NEAR(mean[0], golden["out.loss"][0], golden.tolerance("out.loss"));
  for (std::int64_t i = 0; i < dpred.size(); ++i) {
    EXPECT_NEAR(dpred[i], want[i], golden.tolerance("out.grad_pred")) << i;
  }
}

TEST(MseRecorded, AddsToTheLossAndMayLeaveTheGradientOut) {
  const SampleTensor x = SampleTensor(DType::f32, {3, 5}).fill_normal(1);
  const SampleTensor y = SampleTensor(DType::f32, {3, 5}).fill_normal(2);
  SampleTensor start(DType::f64, {1});
  start.set(0, 2);
  RecordedProgram p;
  const Buffer pred = p.input("pred", x), target = p.input("target", y);
  const Buffer loss = p.input("loss", start);
  const Buffer dpred = p.pb.temp("dpred", {3, 5}, DType::bf16);
  mse(p.pb, pred, target, 0.5, loss, dpred);
  mse(p.pb, pred, target, 0.5, loss, {});
  EXPECT_EQ(p.instruction(0).reads, (std::vector{pred, target, loss}));
  EXPECT_EQ(p.instruction(0).writes, (std::vector{loss, dpred}));
  EXPECT_EQ(p.instruction(1).writes, std::vector{loss});
  p.run();
  EXPECT_NEAR(p.value(loss)[0], 2 + 2 * ref::mse(x.values(), y.values(), 0.5), 1e-5);
}

}  // namespace
}  // namespace ballast::ops
