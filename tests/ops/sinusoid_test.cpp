#include "ops/sinusoid.h"

#include <gtest/gtest.h>

#include "core/to_size.h"
#include "tests/ref/sinusoid.h"
#include "tests/support/recorded_program.h"
#include "tests/support/test_device.h"

namespace ballast::ops::sinusoid_test {
namespace {

using support::RecordedProgram;
using support::SampleTensor;

SampleTensor run(const std::vector<double>& t, std::int64_t width, int threads = 1) {
  ThreadPool pool(threads);
  const auto rows = static_cast<std::int64_t>(t.size());
  SampleTensor in(DType::f64, {rows}), out(DType::f32, {rows, width});
  in.fill(t);
  sinusoid({.t = in.view(), .y = out.view()}, support::test_stream(pool));
  EXPECT_TRUE(out.padding_untouched());
  return out;
}

TEST(Sinusoid, HasThePublishedValuesAtT999) {
  const SampleTensor s = run({999}, 256);
  const std::pair<int, double> published[] = {
      {0, 0.999649882},    {1, 0.963782489},    {64, -0.844469726},  {127, 0.994243145},
      {128, -0.026460752}, {129, -0.266689569}, {192, -0.535603344}, {255, 0.107147239}};
  for (const auto& [i, value] : published) EXPECT_NEAR(s[i], value, 6e-8) << i;  // one f32 rounding
}

TEST(Sinusoid, MatchesReferenceForAnyWidthAndTimestep) {
  for (const std::int64_t width : {0, 2, 6, 64, 256}) {
    const std::vector<double> t = {0, 1, 250.5, 1000, 999.9990234375};
    const SampleTensor s = run(t, width);
    const std::vector<double> want = ref::sinusoid(t, to_size(width));
    for (std::int64_t i = 0; i < s.size(); ++i) {
      EXPECT_NEAR(s[i], want[to_size(i)], 6e-8) << i;
    }
  }
}

TEST(Sinusoid, GivesTheSameBitsForAnyThreadCountAndAnyCompany) {
  const SampleTensor one = run({12.5, 999, 3}, 34, 1);
  EXPECT_EQ(one.bytes(), run({12.5, 999, 3}, 34, 3).bytes());
  const SampleTensor alone = run({999}, 34);
  for (std::int64_t i = 0; i < 34; ++i) EXPECT_EQ(one[34 + i], alone[i]);
}

TEST(Sinusoid, AcceptsNoTimesteps) { EXPECT_EQ(run({}, 8).size(), 0); }

TEST(Sinusoid, RefusesAnOddWidth) { EXPECT_THROW(run({1}, 7), Error); }

TEST(Sinusoid, IsRecordedWithItsShape) {
  RecordedProgram p;
  SampleTensor t(DType::f64, {2});
  t.fill({999, 5});
  const Buffer in = p.input("t", t);
  const Buffer y = sinusoid(p.pb, in, 16);
  EXPECT_EQ(p.instruction(0).reads, std::vector{in});
  EXPECT_EQ(p.instruction(0).writes, std::vector{y});
  p.run();
  EXPECT_EQ(p.value(y).shape(), (Shape{2, 16}));
  const std::vector<double> want = ref::sinusoid({999, 5}, 16);
  for (std::int64_t i = 0; i < 32; ++i) {
    EXPECT_NEAR(p.value(y)[i], want[to_size(i)], 6e-8) << i;
  }
}

}  // namespace
}  // namespace ballast::ops::sinusoid_test
