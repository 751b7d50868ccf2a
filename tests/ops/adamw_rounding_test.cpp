// AdamW on bf16 parameters and states, and optimi's form of it.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/thread_pool.h"
#include "core/to_size.h"
#include "ops/adamw.h"
#include "tests/ref/adamw.h"
#include "tests/support/sample_tensor.h"

namespace ballast::ops::adamw_rounding_test {
namespace {

using support::SampleTensor;

constexpr AdamWOptions kOptimi = {
    .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-6, .weight_decay = 0.01, .debias = Debias::betas};

struct State {
  SampleTensor p, m, v, carry;
  State(std::int64_t n, DType type, DType state, std::int64_t start = 0)
      : p(type, {n}, {.start = start}),
        m(state, {n}, {.start = start}),
        v(state, {n}, {.start = start}),
        carry(type, {n}, {.start = start}) {}

  AdamW step(const SampleTensor& g, int k, double lr, UpdateRounding rounding,
             const AdamWOptions& options = kOptimi) {
    return {.p = p.view(),
            .m = m.view(),
            .v = v.view(),
            .g = g.view(),
            .grad_scale = {},
            .options = options,
            .step = k,
            .learning_rate = lr,
            .rounding = {.rounding = rounding,
                         .carry = carry.view(),
                         .random = random_source(7, "update", k, "w")}};
  }
};

SampleTensor normal(std::int64_t n, std::uint32_t seed, DType type = DType::f32) {
  SampleTensor t(type, {n});
  t.fill_normal(seed);
  return t;
}

TEST(AdamWOptimi, TenStepsMatchTheReferenceInF32) {
  ThreadPool pool(2);
  const std::int64_t n = 1003;
  State s(n, DType::f32, DType::f32, 1);
  s.p.fill_normal(1);
  ref::OptimiState want = {s.p.values(), s.m.values(), s.v.values(), s.carry.values()};
  for (int k = 1; k <= 10; ++k) {
    const SampleTensor g = normal(n, static_cast<std::uint32_t>(k));
    adamw(s.step(g, k, 0.01, UpdateRounding::kahan), support::test_stream(pool));
    ref::adamw_optimi(want, g.values(), 0.01, 0.9, 0.99, 1e-6, 0.01, k, DType::f32);
  }
  for (std::int64_t i = 0; i < n; ++i) {
    const auto at = to_size(i);
    // Ten roundings of p, and of steps of at most a few lr.
    ASSERT_NEAR(s.p[i], want.p[at], 10 * 0x1p-24 * (3 * std::abs(want.p[at]) + 1)) << i;
  }
  EXPECT_TRUE(s.p.padding_untouched() && s.m.padding_untouched() && s.v.padding_untouched());
}

TEST(AdamWOptimi, TenStepsInBf16MatchTheReferenceWithItsCarry) {
  ThreadPool pool(2);
  const std::int64_t n = 1003;
  State s(n, DType::bf16, DType::bf16);
  s.p.fill_normal(1);
  ref::OptimiState want = {s.p.values(), s.m.values(), s.v.values(), s.carry.values()};
  int equal = 0;
  for (int k = 1; k <= 10; ++k) {
    const SampleTensor g = normal(n, static_cast<std::uint32_t>(k), DType::bf16);
    adamw(s.step(g, k, 0.001, UpdateRounding::kahan), support::test_stream(pool));
    ref::adamw_optimi(want, g.values(), 0.001, 0.9, 0.99, 1e-6, 0.01, k, DType::bf16);
    for (std::int64_t i = 0; i < n; ++i) {
      const auto at = to_size(i);
      equal += s.p[i] == want.p[at] && s.carry[i] == want.c[at];
      // A tie that f32 and f64 see differently moves a moment or the carry by one bf16 step.
      ASSERT_NEAR(s.p[i] + s.carry[i], want.p[at] + want.c[at],
                  k * 0x1p-7 * (0.002 + 0x1p-9 * std::abs(want.p[at])))
          << i;
    }
  }
  // Ties are rare; without fused multiply-adds there are a few more of them (2.5 %).
  EXPECT_GT(equal, 10 * n * 95 / 100);
}

TEST(AdamWOptimi, FirstStepForgetsTheStateAndMovesByTheLearningRate) {
  ThreadPool pool(1);
  State s(3, DType::f32, DType::f32);
  s.m.fill({5, 5, 5});
  s.v.fill({9, 9, 9});
  SampleTensor g(DType::f32, {3});
  g.fill({2, -0.5, 0});
  AdamWOptions options = kOptimi;
  options.weight_decay = 0;
  adamw(s.step(g, 1, 0.25, UpdateRounding::nearest, options), support::test_stream(pool));
  EXPECT_EQ(s.m.values(), g.values());
  EXPECT_EQ(s.v.values(), (std::vector<double>{4, 0.25, 0}));
  EXPECT_NEAR(s.p[0], -0.25, 1e-6);
  EXPECT_NEAR(s.p[1], 0.25, 1e-6);
  EXPECT_EQ(s.p[2], 0);
}

// p = 1 shall lose 1e-4 in each of 100 steps; the bf16 numbers below 1 are 2^-8 apart.
std::vector<double> walk(UpdateRounding rounding, std::int64_t n) {
  ThreadPool pool(2);
  State s(n, DType::bf16, DType::f32);
  SampleTensor g(DType::f32, {n});
  for (std::int64_t i = 0; i < n; ++i) {
    s.p.set(i, 1);
    g.set(i, 3);
  }
  AdamWOptions options = kOptimi;
  options.weight_decay = 0;
  for (int k = 1; k <= 100; ++k)
    adamw(s.step(g, k, 1e-4, rounding, options), support::test_stream(pool));
  return s.p.values();
}

TEST(UpdateRounding, NearestLosesUpdatesBelowHalfAStep) {
  for (const double p : walk(UpdateRounding::nearest, 5)) EXPECT_EQ(p, 1);
}

TEST(UpdateRounding, KahanSumsRecoverTinyUpdates) {
  for (const double p : walk(UpdateRounding::kahan, 5)) EXPECT_NEAR(p, 0.99, 0x1p-9);
}

TEST(UpdateRounding, StochasticIsRightOnAverage) {
  const std::vector<double> p = walk(UpdateRounding::stochastic, 4096);
  double mean = 0;
  bool moved = false, different = false;
  for (const double x : p) {
    mean += x / 4096;
    moved |= x != 1;
    different |= x != p[0];
  }
  EXPECT_TRUE(moved && different);
  // Each of 100 steps has a standard deviation of at most 2^-9: 2^-9 * 10 / 64 for the mean.
  EXPECT_NEAR(mean, 0.99, 5 * 0x1p-9 * 10 / 64);
}

TEST(UpdateRounding, StochasticLetsABf16SecondMomentGrow) {
  ThreadPool pool(1);
  const std::int64_t n = 4096;
  SampleTensor g(DType::f32, {n});
  for (std::int64_t i = 0; i < n; ++i) g.set(i, 2);
  AdamWOptions options = {.beta1 = 0.9, .beta2 = 0.999};
  double mean[2] = {};
  for (const auto rounding : {UpdateRounding::nearest, UpdateRounding::stochastic}) {
    State s(n, DType::bf16, DType::bf16);
    for (std::int64_t i = 0; i < n; ++i) s.v.set(i, 1);
    adamw(s.step(g, 1, 1e-3, rounding, options), support::test_stream(pool));
    for (const double v : s.v.values()) mean[rounding == UpdateRounding::stochastic] += v / n;
  }
  EXPECT_EQ(mean[0], 1) << "1.003 is nearer to 1 than to 1.0078";
  EXPECT_NEAR(mean[1], 1.003, 5 * 0x1p-8 / 64);
}

TEST(UpdateRounding, BitsDependOnNothingButElementStepAndSite) {
  const std::int64_t n = 40003;
  const SampleTensor g = normal(n, 5, DType::bf16);
  for (const auto rounding : {UpdateRounding::kahan, UpdateRounding::stochastic}) {
    std::vector<double> want;
    for (const int threads : {1, 2, 3}) {
      ThreadPool pool(threads);
      State s(n, DType::bf16, DType::bf16, threads);
      s.p.fill_normal(1);
      for (int k = 1; k <= 3; ++k) adamw(s.step(g, k, 0.003, rounding), support::test_stream(pool));
      if (want.empty()) want = s.p.values();
      ASSERT_TRUE(s.p.values() == want);
    }
    // In pieces, cut where no vector and no piece of random words ends.
    ThreadPool pool(2);
    State s(n, DType::bf16, DType::bf16);
    s.p.fill_normal(1);
    for (int k = 1; k <= 3; ++k) {
      const AdamW whole = s.step(g, k, 0.003, rounding);
      for (std::int64_t first = 0, count = 1; first < n; first += count, count = 9001) {
        AdamW part = whole;
        count = std::min(count, n - first);
        const auto cut = [&](auto& t) { t = t.rows(first, count); };
        cut(part.p), cut(part.m), cut(part.v), cut(part.g), cut(part.rounding.carry);
        part.rounding.first_element = first;
        adamw(part, support::test_stream(pool));
      }
    }
    EXPECT_TRUE(s.p.values() == want);
  }
  State a(n, DType::bf16, DType::f32), b(n, DType::bf16, DType::f32);
  ThreadPool pool(1);
  AdamW step = b.step(g, 1, 0.003, UpdateRounding::stochastic);
  a.p.fill_normal(1);
  b.p.fill_normal(1);
  adamw(a.step(g, 1, 0.003, UpdateRounding::stochastic), support::test_stream(pool));
  step.rounding.random.site ^= 1;
  adamw(step, support::test_stream(pool));
  EXPECT_NE(a.p.values(), b.p.values());
}

// Magnitudes between which a GPU's way with eight elements at a time must choose: ordinary ones,
// zeros, some that are too small or too large for it, and none at all.
double any_number(std::int64_t i, int salt) {
  const int k = static_cast<int>(i) * 31 + salt * 17;
  const double sign = k % 3 == 0 ? -1 : 1, ordinary = std::ldexp(1.0 + k % 97 / 97.0, -(k % 23));
  if (i < 256) return sign * ordinary;
  if (i >= 272 && i < 280) return i % 2 == 0 ? 0.0 : -0.0;
  if (i % 16 < 8) return sign * std::ldexp(ordinary, k % 240 - 130);
  if (i == 300) return std::numeric_limits<double>::infinity();
  if (i == 316) return std::numeric_limits<double>::quiet_NaN();
  if (i == 332) return 3.0e38;
  return sign * ordinary;
}

TEST(UpdateRounding, NumbersOfAnySizeHaveTheSameBitsAtAnyPlace) {
  constexpr std::int64_t kCount = 525;
  ThreadPool pool(1);
  const auto bits = [](const SampleTensor& t) {
    std::vector<double> v = t.values();
    for (double& x : v) {
      if (x == 0) x = std::signbit(x) ? -1e-300 : 1e-300;  // a zero keeps its sign
      if (std::isnan(x)) x = 1e300;
    }
    return v;
  };
  for (const DType type : {DType::bf16, DType::f32}) {
    for (const DType state : {DType::bf16, DType::f32}) {
      for (const DType gradient : {DType::bf16, DType::f32}) {
        for (const auto rounding :
             {UpdateRounding::nearest, UpdateRounding::kahan, UpdateRounding::stochastic}) {
          for (const double eps : {1e-8, 0.0}) {  // no eps: quotients of any size
            AdamWOptions options = kOptimi;
            options.eps = eps;
            std::vector<State> states;
            for (const std::int64_t start : {0, 1}) {
              State& s = states.emplace_back(kCount, type, state, start);
              SampleTensor g(gradient, {kCount}, {.start = start});
              for (std::int64_t i = 0; i < kCount; ++i) {
                s.p.set(i, any_number(i, 1));
                s.m.set(i, any_number(i, 2));
                s.v.set(i, std::abs(any_number(i, 3)));
                g.set(i, any_number(i, 4));
              }
              for (int k = 2; k <= 3; ++k) {
                adamw(s.step(g, k, 0.01, rounding, options), support::test_stream(pool));
              }
            }
            EXPECT_EQ(bits(states[0].p), bits(states[1].p));
            EXPECT_EQ(bits(states[0].m), bits(states[1].m));
            EXPECT_EQ(bits(states[0].v), bits(states[1].v));
            EXPECT_EQ(bits(states[0].carry), bits(states[1].carry));
          }
        }
      }
    }
  }
}

TEST(UpdateRounding, NeedsACarryThatFits) {
  ThreadPool pool(1);
  State s(4, DType::bf16, DType::bf16);
  const SampleTensor g = normal(4, 1);
  AdamW step = s.step(g, 1, 0.1, UpdateRounding::kahan);
  EXPECT_NO_THROW(adamw(step, support::test_stream(pool)));
  step.rounding.carry = {};
  EXPECT_THROW(adamw(step, support::test_stream(pool)), Error);
  step.rounding.carry = s.carry.view().rows(0, 3);
  EXPECT_THROW(adamw(step, support::test_stream(pool)), Error);
  step = s.step(g, 1, 0.1, UpdateRounding::nearest);
  SampleTensor wide(DType::f32, {4});
  step.v = wide.view();
  EXPECT_THROW(adamw(step, support::test_stream(pool)), Error) << "m is bf16, v is f32";
}

}  // namespace
}  // namespace ballast::ops::adamw_rounding_test
