#include "ops/stableadamw_scale.h"

#include <gtest/gtest.h>

#include "core/to_size.h"
#include "tests/ref/stableadamw_scale.h"
#include "tests/support/recorded_program.h"
#include "tests/support/test_device.h"

namespace ballast::ops::stableadamw_scale_test {
namespace {

using support::RecordedProgram;
using support::SampleTensor;

constexpr double kRate = 0.01;
constexpr AdamWOptions kOptions = {
    .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-6, .weight_decay = 0.1, .debias = Debias::betas};

StableAdamWScale call(const SampleTensor& v, const SampleTensor& g, SampleTensor& rates, int k,
                      const AdamWOptions& options = kOptions) {
  return {.v = v.view(),
          .g = g.view(),
          .grad_scale = {},
          .rates = rates.view(),
          .options = options,
          .step = k,
          .learning_rate = kRate};
}

struct Case {
  Shape shape;
  DType g;
};
class StableAdamWOnCpu : public testing::TestWithParam<Case> {};

TEST_P(StableAdamWOnCpu, TenStepsMatchTheReference) {
  const auto& [shape, type] = GetParam();
  ThreadPool pool(2);
  SampleTensor p(DType::f32, shape), m(DType::f32, shape), v(DType::f32, shape, {.start = 1});
  SampleTensor rates(DType::f32, {2});
  p.fill_normal(1);
  ref::StableAdamWState want = {p.values(), m.values(), v.values()};
  int held_back = 0;
  for (int k = 1; k <= 10; ++k) {
    SampleTensor g(type, shape, {.start = 3});
    g.fill_normal(static_cast<std::uint32_t>(10 + k), k % 4 == 0 ? 30 : 1);  // outbursts
    stableadamw_scale(call(v, g, rates, k), support::test_stream(pool));
    adamw({.p = p.view(),
           .m = m.view(),
           .v = v.view(),
           .g = g.view(),
           .grad_scale = {},
           .options = kOptions,
           .step = k,
           .learning_rate = 123,  // not used: rates has it
           .rates = rates.view()},
          support::test_stream(pool));
    const double rate = ref::stable_adamw(want, g.values(), kRate, 0.9, 0.99, 1e-6, 0.1, k);
    held_back += rate < 0.6 * kRate;
    // The sum's terms are rounded a few times, the sum itself hardly.
    EXPECT_NEAR(rates[0], rate, 4 * 0x1p-24 * rate) << k;
    EXPECT_NEAR(rates[1], 1 - 0.1 * rate, 0x1p-24) << k;
  }
  EXPECT_GE(held_back, 1);
  for (std::int64_t i = 0; i < p.size(); ++i) {
    const double w = want.p[to_size(i)];
    // Ten roundings of p, and of steps of at most a few lr.
    ASSERT_NEAR(p[i], w, 10 * 0x1p-24 * (3 * std::abs(w) + 1)) << i;
  }
}
INSTANTIATE_TEST_SUITE_P(Cases, StableAdamWOnCpu,
                         testing::Values(Case{{37, 129}, DType::f32}, Case{{20001}, DType::f32},
                                         Case{{3, 12000}, DType::bf16}, Case{{5}, DType::bf16}));

TEST(StableAdamWScale, AreAdamWsOwnWhereNothingIsHeldBack) {
  ThreadPool pool(1);
  const SampleTensor v = SampleTensor(DType::f32, {100}).fill_normal(1);
  const SampleTensor g = SampleTensor(DType::f32, {100}).fill_normal(2);
  SampleTensor rates(DType::f32, {2});
  stableadamw_scale(call(v, g, rates, 1), support::test_stream(pool));  // v = g^2: rms is 1
  EXPECT_EQ(rates[0], static_cast<float>(kRate));
  const AdamWCoefficients c = adamw_coefficients(kOptions, 1, kRate);
  EXPECT_EQ(rates[0], c.rate);
  EXPECT_EQ(rates[1], c.decay);
}

TEST(StableAdamWScale, AreFiniteWithoutGradients) {
  ThreadPool pool(1);
  AdamWOptions o = kOptions;
  o.eps = 0;
  for (const std::int64_t n : {0, 1, 40}) {
    const SampleTensor v(DType::bf16, {n}), g(DType::f32, {n});
    SampleTensor rates(DType::f32, {2});
    stableadamw_scale(call(v, g, rates, 3, o), support::test_stream(pool));
    EXPECT_EQ(rates[0], static_cast<float>(kRate)) << n;
  }
}

TEST(StableAdamWScale, TakeTheClippedGradient) {
  ThreadPool pool(1);
  const SampleTensor v(DType::f32, {65}), g = SampleTensor(DType::f32, {65}).fill_normal(2);
  SampleTensor eighth(DType::f32, {65}), scale(DType::f32, {1}), one(DType::f32, {2}), two = one;
  for (std::int64_t i = 0; i < 65; ++i) eighth.set(i, g[i] / 8);
  scale.set(0, 0.125);
  StableAdamWScale scaled = call(v, g, one, 5);
  scaled.grad_scale = scale.view();
  stableadamw_scale(scaled, support::test_stream(pool));
  stableadamw_scale(call(v, eighth, two, 5), support::test_stream(pool));
  EXPECT_EQ(one.bytes(), two.bytes());
  EXPECT_LT(one[0], 0.5 * kRate);
}

TEST(StableRatesBits, DependNeitherOnThreadsNorOnPlace) {
  const std::int64_t n = 70001;
  for (const DType type : {DType::f32, DType::bf16}) {
    std::vector<double> want;
    for (const int threads : {1, 2, 3}) {
      ThreadPool pool(threads);
      SampleTensor v(type, {n}, {.start = threads}), g(type, {n}, {.start = 2 * threads});
      for (std::int64_t i = 0; i < n; ++i) v.set(i, 1e-3 * static_cast<double>(i % 97));
      g.fill_normal(3);
      SampleTensor rates(DType::f32, {2});
      stableadamw_scale(call(v, g, rates, 7), support::test_stream(pool));
      if (want.empty()) want = rates.values();
      EXPECT_EQ(rates.values(), want);
    }
    EXPECT_LT(want[0], kRate);
  }
}

TEST(StableRatesChecks, RefuseWhatDoesNotFit) {
  ThreadPool pool(1);
  const SampleTensor v(DType::f32, {4}), g(DType::f32, {4}), other(DType::f32, {5});
  SampleTensor rates(DType::f32, {2}), few(DType::f32, {1});
  const auto run = [&](const StableAdamWScale& a) {
    stableadamw_scale(a, support::test_stream(pool));
  };
  EXPECT_NO_THROW(run(call(v, g, rates, 1)));
  EXPECT_THROW(run(call(v, g, rates, 0)), Error);
  EXPECT_THROW(run(call(v, other, rates, 1)), Error);
  EXPECT_THROW(run(call(v, g, few, 1)), Error);
  EXPECT_THROW(run(call(v, g, rates, 1, {})), Error) << "moments that are not debiased";
}

TEST(StableRatesRecorded, TakesStepAndLearningRateFromTheRun) {
  const Shape shape = {6, 9};
  const SampleTensor start = SampleTensor(DType::f32, shape).fill_normal(1),
                     zero(DType::f32, shape);
  const SampleTensor gradient = SampleTensor(DType::f32, shape).fill_normal(2);
  RecordedProgram program;
  const Buffer p = program.input("p", start), m = program.input("m", zero);
  const Buffer v = program.input("v", zero), g = program.input("g", gradient);
  AdamWOptions o = kOptions;
  o.rate = 2;
  const Buffer rates = stableadamw_scale(program.pb, {.v = v, .g = g}, o);
  EXPECT_EQ(program.instruction(0).reads, (std::vector{v, g}));
  EXPECT_EQ(program.results(0), (std::vector{rates}));
  adamw(program.pb, {{.p = p, .m = m, .v = v, .g = g, .options = o, .rates = rates}}, {});
  ref::StableAdamWState want = {start.values(), zero.values(), zero.values()};
  for (int k = 1; k <= 3; ++k) {
    program.run({.step = k, .learning_rate = 0.01 * k});
    ref::stable_adamw(want, gradient.values(), 0.02 * k, 0.9, 0.99, 1e-6, 0.1, k);
  }
  const SampleTensor got = program.value(p);
  for (std::int64_t i = 0; i < got.size(); ++i) {
    EXPECT_NEAR(got[i], want.p[to_size(i)], 1e-6) << i;
  }
}

}  // namespace
}  // namespace ballast::ops::stableadamw_scale_test
