#include "ops/ema.h"

#include <gtest/gtest.h>

#include "core/to_size.h"
#include "tests/ref/ema.h"
#include "tests/support/recorded_program.h"
#include "tests/support/test_device.h"

namespace ballast::ops::ema_test {
namespace {

using support::RecordedProgram;
using support::SampleTensor;

class EmaOnCpu : public testing::TestWithParam<std::tuple<std::int64_t, DType>> {};

TEST_P(EmaOnCpu, MatchesReferenceOnAnyNumberOfThreads) {
  const auto [n, type] = GetParam();
  std::vector<double> want, first;
  for (const int threads : {1, 2, 3}) {
    ThreadPool pool(threads);
    SampleTensor shadow(DType::f32, {n}, {.start = threads});
    shadow.fill_normal(1);
    want = shadow.values();
    for (std::uint32_t k = 2; k < 6; ++k) {
      SampleTensor p(type, {n}, {.start = 1});
      p.fill_normal(k);
      ema({.p = p.view(), .shadow = shadow.view(), .decay = 0.9}, support::test_stream(pool));
      ref::ema(want, p.values(), 0.9);
    }
    for (std::int64_t i = 0; i < n; ++i) {
      // Two roundings a step, of numbers around 1.
      ASSERT_NEAR(shadow[i], want[to_size(i)], 4 * 2 * 0x1p-24 * 4);
    }
    if (threads == 1) first = shadow.values();
    EXPECT_TRUE(shadow.values() == first);
    EXPECT_TRUE(shadow.padding_untouched());
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, EmaOnCpu,
                         testing::Combine(testing::Values(0, 1, 7, 20001),
                                          testing::Values(DType::f32, DType::bf16)));

TEST(Ema, StaysWhereTheParameterStays) {
  ThreadPool pool(1);
  SampleTensor p(DType::f32, {100}), shadow(DType::f32, {100});
  p.fill_normal(1);
  shadow.fill_normal(1);
  for (int k = 0; k < 10; ++k) {
    ema({.p = p.view(), .shadow = shadow.view(), .decay = 0.999}, support::test_stream(pool));
  }
  EXPECT_EQ(shadow.values(), p.values());
}

TEST(Ema, RefusesWhatDoesNotFit) {
  ThreadPool pool(1);
  SampleTensor p(DType::bf16, {4}), shadow(DType::f32, {4}), other(DType::f32, {5});
  const auto run = [&](SampleTensor& to, double decay) {
    ema({.p = p.view(), .shadow = to.view(), .decay = decay}, support::test_stream(pool));
  };
  EXPECT_NO_THROW(run(shadow, 1));
  EXPECT_THROW(run(other, 0.9), Error);
  EXPECT_THROW(run(p, 0.9), Error);
  EXPECT_THROW(run(shadow, 1.5), Error);
}

TEST(EmaRecorded, UpdatesTheShadowInPlace) {
  RecordedProgram program;
  const Buffer p = program.input("p", SampleTensor(DType::f32, {2}).fill({4, 8}));
  const Buffer shadow = program.input("shadow", SampleTensor(DType::f32, {2}).fill({0, 4}));
  ema(program.pb, p, shadow, 0.75);
  program.run();
  program.run();
  EXPECT_EQ(program.value(shadow).values(), (std::vector<double>{1.75, 5.75}));
}

}  // namespace
}  // namespace ballast::ops::ema_test
