#include "ops/relu.h"

#include <gtest/gtest.h>

#include "tests/ref/relu.h"
#include "tests/support/recorded_program.h"
#include "tests/support/row_op.h"

namespace ballast::ops::relu_test {
namespace {

using namespace support;

TEST(ReluRef, SlopeMatchesFiniteDifferences) {
  for (const double x : {-3.0, -0.1, 0.2, 7.0}) {
    const double h = 1e-5;
    EXPECT_NEAR(ref::relu_slope(x), (ref::relu(x + h) - ref::relu(x - h)) / (2 * h), 1e-9) << x;
  }
}

TEST(Relu, MatchesReferenceForAnyTypesLayoutAndPlace) {
  ThreadPool pool(2);
  for (const SampleTensor::Layout& layout : {kStrided, kAligned}) {
    for (const DType dtype : kActivations) {
      SampleTensor x(dtype, {5, 304}, layout), dy = x, y = x, dx = x;
      x.fill_normal(1), dy.fill_normal(2);
      x.set(0, 0);
      Doubles want_y, want_dx;
      for (std::int64_t i = 0; i < x.size(); ++i) {
        want_y.push_back(ref::relu(x[i]));
        want_dx.push_back(dy[i] * ref::relu_slope(x[i]));
      }
      relu({.x = x.view(), .y = y.view()}, test_stream(pool));
      relu_backward({.x = x.view(), .dy = dy.view(), .dx = dx.view()}, test_stream(pool));
      expect_close(y, want_y, 0, "y");
      expect_close(dx, want_dx, 0, "dx");
      // The result has the sign that backward asks for.
      relu_backward({.x = y.view(), .dy = dy.view(), .dx = dy.view()}, test_stream(pool));
      EXPECT_EQ(dy.bytes(), dx.bytes());
    }
  }
}

TEST(Relu, IsRecordedWithItsOperands) {
  RecordedProgram p;
  SampleTensor x(DType::f32, {2, 3});
  x.fill({-1, 2, 0, 3, -4, 5});
  const Buffer bx = p.input("x", x);
  const Buffer y = p.pb.temp("y", {2, 3}, DType::f32);
  relu_into(p.pb, bx, y);
  relu_backward_into(p.pb, bx, y, bx);
  p.run();
  expect_close(p.value(y), {0, 2, 0, 3, 0, 5}, 0, "y");
  expect_close(p.value(bx), {0, 2, 0, 3, 0, 5}, 0, "dx");
}

}  // namespace
}  // namespace ballast::ops::relu_test
