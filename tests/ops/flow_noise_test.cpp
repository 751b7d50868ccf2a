#include "ops/flow_noise.h"

#include <gtest/gtest.h>

#include "core/to_size.h"
#include "tests/ref/flow_noise.h"
#include "tests/support/finite_differences.h"
#include "tests/support/golden_file.h"
#include "tests/support/recorded_program.h"
#include "tests/support/test_device.h"

namespace ballast::ops::flow_noise_test {
namespace {

using support::GoldenFile;
using support::RecordedProgram;
using support::SampleTensor;

SampleTensor scalar(DType dtype, double value) {
  SampleTensor t(dtype, {1});
  t.set(0, value);
  return t;
}

// The target is the velocity of x_t: d x_t / dt.
TEST(FlowNoiseRef, TargetIsTheDerivativeOfTheNoisedSample) {
  const std::vector<double> x0 = {0.5, -2}, noise = {1.25, 0.75};
  const ref::FlowNoise r = ref::flow_noise(x0, noise, 0.3);
  for (const std::size_t i : {0u, 1u}) {
    const auto x_t = [&](const std::vector<double>& t) {
      return ref::flow_noise(x0, noise, t[0]).x_t[i];
    };
    EXPECT_NEAR(support::numeric_gradient(x_t, {0.3})[0], r.target[i], 1e-10);
  }
}

class FlowNoiseOnCpu : public testing::TestWithParam<std::tuple<std::int64_t, DType>> {};

TEST_P(FlowNoiseOnCpu, MatchesReference) {
  const auto [n, t_type] = GetParam();
  ThreadPool pool(2);
  SampleTensor x0(DType::f32, {n}, {.start = 1}), noise(DType::f32, {n}, {.start = 2});
  SampleTensor x_t(DType::f32, {n}, {.start = 3}), target(DType::f32, {n}, {.start = 1});
  x0.fill_normal(1);
  noise.fill_normal(2);
  for (const double time : {0.0, 0.3125, 0.999, 1.0}) {
    const SampleTensor t = scalar(t_type, time);
    flow_noise({.x0 = x0.view(),
                .noise = noise.view(),
                .t = t.view(),
                .x_t = x_t.view(),
                .target = target.view()},
               support::test_stream(pool));
    const ref::FlowNoise want = ref::flow_noise(x0.values(), noise.values(), t[0]);
    for (std::int64_t i = 0; i < n; ++i) {
      // Coefficients, products and the sum: three roundings of each term.
      const double size = std::abs(x0[i]) * (1 - t[0]) + std::abs(noise[i]) * t[0];
      EXPECT_NEAR(x_t[i], want.x_t[to_size(i)], 3.01 * 0x1p-24 * size);
      EXPECT_EQ(target[i], static_cast<float>(want.target[to_size(i)]));
    }
    EXPECT_TRUE(time != 0 || x_t.values() == x0.values());
    EXPECT_TRUE(time != 1 || x_t.values() == noise.values());
  }
  EXPECT_TRUE(x_t.padding_untouched() && target.padding_untouched());
}

INSTANTIATE_TEST_SUITE_P(Sizes, FlowNoiseOnCpu,
                         testing::Combine(testing::Values(0, 1, 5, 64, 40001),
                                          testing::Values(DType::f32, DType::f64)));

TEST(FlowNoiseBits, DependNeitherOnThreadsNorOnAlignment) {
  std::vector<double> want_x, want_target;
  for (const int threads : {1, 2, 3}) {
    ThreadPool pool(threads);
    const std::int64_t n = 50003;
    SampleTensor x0(DType::f32, {n}, {.start = threads}), noise(DType::f32, {n});
    x0.fill_normal(1);
    noise.fill_normal(2);
    const SampleTensor t = scalar(DType::f64, 0.7);
    // In place, both of them.
    flow_noise({.x0 = x0.view(),
                .noise = noise.view(),
                .t = t.view(),
                .x_t = x0.view(),
                .target = noise.view()},
               support::test_stream(pool));
    if (threads == 1) {
      want_x = x0.values();
      want_target = noise.values();
    }
    EXPECT_TRUE(x0.values() == want_x && noise.values() == want_target);
  }
  // An element alone, the tail of nothing, against its bits inside the row.
  ThreadPool pool(1);
  SampleTensor x0(DType::f32, {50003}), noise(DType::f32, {50003}), x_t(DType::f32, {1});
  x0.fill_normal(1);
  noise.fill_normal(2);
  const SampleTensor t = scalar(DType::f64, 0.7);
  for (const std::int64_t i : {0, 1, 2, 3, 17, 50002}) {
    flow_noise({.x0 = x0.view().rows(i, 1),
                .noise = noise.view().rows(i, 1),
                .t = t.view(),
                .x_t = x_t.view(),
                .target = {}},
               support::test_stream(pool));
    EXPECT_EQ(x_t[0], want_x[to_size(i)]) << i;
  }
}

TEST(FlowNoiseGolden, MatchesTheReferenceImplementation) {
  const GoldenFile golden("flow_matching");
  const SampleTensor x0 = golden["in.x0"], noise = golden["in.noise"], t = golden["in.t"];
  const SampleTensor want_x = golden["out.x_t"], want_target = golden["out.target"];
  SampleTensor x_t(DType::f32, x0.shape()), target(DType::f32, x0.shape());
  ThreadPool pool(2);
  for (std::int64_t s = 0; s < 3; ++s) {
    flow_noise({.x0 = x0.view().rows(s, 1),
                .noise = noise.view().rows(s, 1),
                .t = t.view().rows(s, 1),
                .x_t = x_t.view().rows(s, 1),
                .target = target.view().rows(s, 1)},
               support::test_stream(pool));
  }
  for (std::int64_t i = 0; i < x0.size(); ++i) {
    EXPECT_NEAR(x_t[i], want_x[i], golden.tolerance("out.x_t")) << i;
    EXPECT_NEAR(target[i], want_target[i], golden.tolerance("out.target")) << i;
  }
}

TEST(FlowNoiseChecks, RefuseWhatDoesNotFit) {
  ThreadPool pool(1);
  SampleTensor a(DType::f32, {2, 3}), b(DType::f32, {3, 2}), c(DType::bf16, {2, 3});
  const SampleTensor t = scalar(DType::f64, 0.5), pair(DType::f64, {2});
  const auto run = [&](SampleTensor& noise, const SampleTensor& time) {
    flow_noise(
        {.x0 = a.view(), .noise = noise.view(), .t = time.view(), .x_t = a.view(), .target = {}},
        support::test_stream(pool));
  };
  EXPECT_NO_THROW(run(a, t));
  EXPECT_THROW(run(b, t), Error);
  EXPECT_THROW(run(c, t), Error);
  EXPECT_THROW(run(a, pair), Error);
}

TEST(FlowNoiseRecorded, MakesBothResults) {
  const SampleTensor x = SampleTensor(DType::f32, {2, 5}).fill_normal(1);
  const SampleTensor e = SampleTensor(DType::f32, {2, 5}).fill_normal(2);
  RecordedProgram p;
  const Buffer x0 = p.input("x0", x), noise = p.input("noise", e);
  const Buffer t = p.input("t", scalar(DType::f32, 0.5));
  const FlowNoiseOut out = flow_noise(p.pb, x0, noise, t);
  EXPECT_EQ(p.instruction(0).reads, (std::vector{x0, noise, t}));
  EXPECT_EQ(p.instruction(0).writes, (std::vector{out.x_t, out.target}));
  p.run();
  const ref::FlowNoise want = ref::flow_noise(x.values(), e.values(), 0.5);
  for (std::int64_t i = 0; i < x.size(); ++i) {
    EXPECT_NEAR(p.value(out.x_t)[i], want.x_t[to_size(i)], 1e-6);
    EXPECT_NEAR(p.value(out.target)[i], want.target[to_size(i)], 1e-6);
  }
}

}  // namespace
}  // namespace ballast::ops::flow_noise_test
