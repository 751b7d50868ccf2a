#include "ops/silu.h"

#include <gtest/gtest.h>

#include <limits>

#include "core/to_size.h"
#include "tests/ref/silu.h"
#include "tests/support/recorded_program.h"
#include "tests/support/row_op.h"

namespace ballast::ops::silu_test {
namespace {

using namespace support;

// From the formula in 50-digit decimal arithmetic.
TEST(SiluRef, HasKnownValues) {
  EXPECT_NEAR(ref::silu(1), 0.73105857863000488, 1e-15);
  EXPECT_NEAR(ref::silu(-2), -0.23840584404423511, 1e-15);
  EXPECT_EQ(ref::silu(0), 0);
}

TEST(SiluRef, SlopeMatchesFiniteDifferences) {
  for (const double x : {-6.0, -1.3, -0.2, 0.0, 0.7, 2.0, 9.0}) {
    const double h = 1e-5;
    EXPECT_NEAR(ref::silu_slope(x), (ref::silu(x + h) - ref::silu(x - h)) / (2 * h), 1e-9) << x;
  }
}

Doubles forward(const SampleTensor& x) {
  Doubles y = x.values();
  for (double& v : y) v = ref::silu(v);
  return y;
}
Doubles backward(const SampleTensor& x, const SampleTensor& dy) {
  Doubles dx = dy.values();
  for (std::int64_t i = 0; i < x.size(); ++i) {
    dx[to_size(i)] *= ref::silu_slope(x[i]);
  }
  return dx;
}

// Every element against its own size, not the largest of the tensor: exp is good to 2 units in the
// last place. Slopes are sums of two terms of size 1.
TEST(Silu, IsAccurateElementByElement) {
  ThreadPool pool(1);
  const std::int64_t n = 4001;
  SampleTensor x(DType::f32, {1, n}), y = x, dy = x, dx = x;
  for (std::int64_t i = 0; i < n; ++i) {
    x.set(i, -40 + 0.02 * static_cast<double>(i));
    dy.set(i, 1);
  }
  silu({.x = x.view(), .y = y.view()}, support::test_stream(pool));
  silu_backward({.x = x.view(), .dy = dy.view(), .dx = dx.view()}, support::test_stream(pool));
  for (std::int64_t i = 0; i < n; ++i) {
    const double want = ref::silu(x[i]), slope = ref::silu_slope(x[i]);
    ASSERT_NEAR(y[i], want, 5e-7 * std::abs(want)) << x[i];
    ASSERT_NEAR(dx[i], slope, 4e-7 * std::abs(slope) + 4e-7) << x[i];
  }
}

TEST(Silu, KeepsItsLimits) {
  ThreadPool pool(1);
  SampleTensor x(DType::f32, {1, 5}), y = x, dy = x, dx = x;
  x.fill({-1e15, 1e15, 0, -200, std::numeric_limits<double>::quiet_NaN()});
  dy.fill({1, 1, 1, 1, 1});
  silu({.x = x.view(), .y = y.view()}, support::test_stream(pool));
  silu_backward({.x = x.view(), .dy = dy.view(), .dx = dx.view()}, support::test_stream(pool));
  EXPECT_EQ(y[0], 0);
  EXPECT_EQ(y[1], x[1]);
  EXPECT_EQ(y[2], 0);
  EXPECT_EQ(y[3], 0);
  EXPECT_TRUE(std::isnan(y[4]));
  EXPECT_EQ(dx[0], 0);
  EXPECT_EQ(dx[1], 1);
  EXPECT_EQ(dx[2], 0.5);
  EXPECT_EQ(dx[3], 0);
  EXPECT_TRUE(std::isnan(dx[4]));
}

TEST(Silu, MatchesReferenceForAnyTypesAndLayout) {
  ThreadPool pool(2);
  for (const std::int64_t width : kWidths) {
    for (const DType in : kActivations) {
      for (const DType out : kActivations) {
        SampleTensor x(in, {5, width}, kStrided), dy(in, {5, width}, kStrided);
        SampleTensor y(out, {5, width}, kStrided), dx(out, {5, width}, kStrided);
        x.fill_normal(1, 2);
        dy.fill_normal(2);
        silu({.x = x.view(), .y = y.view()}, support::test_stream(pool));
        silu_backward({.x = x.view(), .dy = dy.view(), .dx = dx.view()},
                      support::test_stream(pool));
        expect_close(y, forward(x), 4e-7, "y");
        expect_close(dx, backward(x, dy), 6e-7, "dx");
      }
    }
  }
}

TEST(Silu, MatchesReferenceWhereEverythingIsAligned) {
  ThreadPool pool(2);
  for (const std::int64_t width : {8, 1024, 1032, 13824}) {
    for (const DType dtype : kActivations) {
      const std::int64_t rows = width == 1032 ? 501 : 7;
      SampleTensor x(dtype, {rows, width}, kAligned), dy = x, y = x, dx = x;
      x.fill_normal(1, 2);
      dy.fill_normal(2);
      silu({.x = x.view(), .y = y.view()}, support::test_stream(pool));
      silu_backward({.x = x.view(), .dy = dy.view(), .dx = dx.view()}, support::test_stream(pool));
      expect_close(y, forward(x), 4e-7, "y");
      expect_close(dx, backward(x, dy), 6e-7, "dx");
    }
  }
}

TEST(Silu, AcceptsTensorsOfAnyRank) {
  ThreadPool pool(2);
  for (const Shape& shape : {Shape{7}, Shape{2, 3, 5}, Shape{2, 1, 3, 4}, Shape{0, 4}}) {
    SampleTensor x(DType::f32, shape, {.row_padding = 2}), y = x;
    x.fill_normal(1);
    silu({.x = x.view(), .y = y.view()}, support::test_stream(pool));
    expect_close(y, forward(x), 4e-7, "y");
  }
}

TEST(Silu, RefusesShapesThatDifferAndRowsThatAreNotEvenlySpaced) {
  ThreadPool pool(1);
  SampleTensor x(DType::f32, {4, 3}), y(DType::f32, {3, 4});
  EXPECT_THROW(silu({.x = x.view(), .y = y.view()}, support::test_stream(pool)), Error);
  const TensorView uneven(x.view().data, DType::f32, {2, 2, 2}, {5, 2, 1}, test_device());
  EXPECT_THROW(silu({.x = uneven, .y = uneven}, support::test_stream(pool)), Error);
}

struct Result {
  SampleTensor y, dx;
};
enum class Place { apart, in_place };
Result run(DType dtype, int threads, const std::vector<std::int64_t>& cuts, Place place) {
  const std::int64_t rows = 301, width = 301;
  ThreadPool pool(threads);
  SampleTensor x(dtype, {rows, width}), dy = x;
  x.fill_normal(1, 2);
  dy.fill_normal(2);
  Result out = {x, dy};
  std::int64_t begin = 0;
  for (const std::int64_t n : cuts) {
    const auto part = [&](auto& t) { return t.view().rows(begin, n); };
    const bool same = place == Place::in_place;
    silu({.x = part(same ? out.y : x), .y = part(out.y)}, support::test_stream(pool));
    silu_backward({.x = part(x), .dy = part(same ? out.dx : dy), .dx = part(out.dx)},
                  support::test_stream(pool));
    begin += n;
  }
  EXPECT_EQ(begin, rows);
  return out;
}

TEST(Silu, GivesTheSameBitsForAnyThreadCountChunkingAndInPlace) {
  for (const DType dtype : kActivations) {
    const Result whole = run(dtype, 1, {301}, Place::apart);
    for (const Result& other :
         {run(dtype, 2, {301}, Place::apart), run(dtype, 3, {301}, Place::in_place),
          run(dtype, 2, {256, 45}, Place::apart), run(dtype, 1, {256, 45}, Place::in_place)}) {
      EXPECT_EQ(whole.y.bytes(), other.y.bytes());
      EXPECT_EQ(whole.dx.bytes(), other.dx.bytes());
    }
  }
}

TEST(Silu, IsRecordedWithItsOperands) {
  RecordedProgram p;
  SampleTensor x(DType::f32, {3, 24}), dy(DType::f32, {3, 24});
  x.fill_normal(1);
  dy.fill_normal(2);
  const Buffer bx = p.input("x", x), bdy = p.input("dy", dy);
  const Buffer y = silu(p.pb, bx, DType::bf16);
  silu_backward_into(p.pb, bx, bdy, bdy);
  silu_into(p.pb, bx, bx);
  EXPECT_EQ(p.instruction(0).reads, std::vector{bx});
  EXPECT_EQ(p.instruction(0).writes, std::vector{y});
  EXPECT_EQ(p.instruction(1).reads, (std::vector{bx, bdy}));
  EXPECT_EQ(p.instruction(1).writes, std::vector{bdy});
  p.run();
  EXPECT_EQ(p.value(y).dtype(), DType::bf16);
  expect_close(p.value(y), forward(x), 4e-7, "y");
  expect_close(p.value(bdy), backward(x, dy), 6e-7, "dx");
  expect_close(p.value(bx), forward(x), 4e-7, "y");
}

}  // namespace
}  // namespace ballast::ops::silu_test
