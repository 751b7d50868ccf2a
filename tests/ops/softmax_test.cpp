#include "ops/softmax.h"

#include <gtest/gtest.h>

#include "tests/ref/softmax.h"
#include "tests/support/recorded_program.h"
#include "tests/support/row_op.h"

namespace ballast::ops::softmax_test {
namespace {

using namespace support;

TEST(SoftmaxRef, BackwardMatchesFiniteDifferences) {
  const Doubles x = normal_values(14, 1), dy = normal_values(14, 2);
  const auto loss = [&](const Doubles& v) {
    const Doubles y = ref::softmax(v, 7, 0.3);
    double sum = 0;
    for (std::size_t i = 0; i < y.size(); ++i) sum += y[i] * dy[i];
    return sum;
  };
  expect_close(ref::softmax_backward(ref::softmax(x, 7, 0.3), dy, 7, 0.3),
               finite_differences(x, loss), 1e-8, "dx");
}

TEST(Softmax, MatchesReferenceForAnyTypesAndLayout) {
  ThreadPool pool(2);
  for (const std::int64_t width : kWidths) {
    for (const DType in : kActivations) {
      for (const DType out : kActivations) {
        SampleTensor x(in, {4, width}, kStrided), y(out, {4, width}, kStrided);
        SampleTensor dy(in, {4, width}, kStrided), dx(out, {4, width}, kStrided);
        x.fill_normal(1, 6);
        dy.fill_normal(2);
        softmax({.x = x.view(), .y = y.view(), .scale = 0.4f}, test_stream(pool));
        softmax_backward({.y = y.view(), .dy = dy.view(), .dx = dx.view(), .scale = 0.4f},
                         test_stream(pool));
        expect_close(y, ref::softmax(x.values(), width, 0.4), 2e-6, "y");
        // One key: its gradient is what rounding leaves of 0.
        if (width > 1) {
          expect_close(dx, ref::softmax_backward(y.values(), dy.values(), width, 0.4), 4e-6, "dx");
        }
      }
    }
  }
}

TEST(Softmax, StaysFiniteWhereExponentialsWouldOverflow) {
  ThreadPool pool(1);
  SampleTensor x(DType::f32, {1, 3});
  x.fill({1e30, -1e30, 1e30});
  softmax({.x = x.view(), .y = x.view()}, test_stream(pool));
  EXPECT_EQ(x.values(), (Doubles{0.5, 0, 0.5}));
}

TEST(Softmax, IsRecordedWithItsOperands) {
  RecordedProgram p;
  SampleTensor x(DType::f32, {3, 24}), dy(DType::f32, {3, 24});
  x.fill_normal(1);
  dy.fill_normal(2);
  const Buffer bx = p.input("x", x), bdy = p.input("dy", dy);
  softmax_into(p.pb, bx, bx, 1);
  softmax_backward_into(p.pb, bx, bdy, bdy, 1);
  p.run();
  const Doubles y = ref::softmax(x.values(), 24, 1);
  expect_close(p.value(bx), y, 2e-6, "y");
  expect_close(p.value(bdy), ref::softmax_backward(y, dy.values(), 24, 1), 4e-6, "dx");
}

}  // namespace
}  // namespace ballast::ops::softmax_test
