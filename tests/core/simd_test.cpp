#include "core/simd.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "core/to_size.h"

namespace ballast {
namespace test {
BALLAST_PER_ISA(void exp_of(const float* x, float* y, std::int64_t n))
BALLAST_PER_ISA(void tanh_of(const float* x, float* y, std::int64_t n))
BALLAST_PER_ISA(float sum_of_lanes(const float* x))
BALLAST_PER_ISA(float max_of_lanes(const float* x))
BALLAST_PER_ISA(int lanes())
}  // namespace test

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

using Function = void (*)(const float*, float*, std::int64_t);
void vector_exp(const float* x, float* y, std::int64_t n) {
  BALLAST_ISA_CALL(test, exp_of, x, y, n);
}
void vector_tanh(const float* x, float* y, std::int64_t n) {
  BALLAST_ISA_CALL(test, tanh_of, x, y, n);
}

float one(Function f, float x) {
  float y = 0;
  f(&x, &y, 1);
  return y;
}

// Distance from the true value in units of the last place of the f32 next to it.
double ulp_error(float got, double want) {
  const int e = std::max(std::ilogb(want), -126);
  return std::fabs(static_cast<double>(got) - want) / std::ldexp(1.0, e - 23);
}

struct Worst {
  double error = 0;
  float x = 0;
};

// Every 251st bit pattern of both signs with |x| in [lo, hi], and both ends.
template <class True>
Worst sweep(Function f, True truth, float lo, float hi) {
  std::vector<float> x = {lo, hi, -lo, -hi};
  for (std::uint32_t b = std::bit_cast<std::uint32_t>(lo); b <= std::bit_cast<std::uint32_t>(hi);
       b += 251) {
    x.push_back(std::bit_cast<float>(b));
    x.push_back(-std::bit_cast<float>(b));
  }
  std::vector<float> y(x.size());
  f(x.data(), y.data(), static_cast<std::int64_t>(x.size()));
  Worst worst;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double error = ulp_error(y[i], truth(static_cast<double>(x[i])));
    if (!(error <= worst.error)) worst = {error, x[i]};
  }
  return worst;
}

TEST(SimdExp, StaysWithinTwoUlp) {
  const Worst w = sweep(
      vector_exp, [](double x) { return std::exp(x); }, 1e-30f, 87.3365f);
  EXPECT_LE(w.error, 2.0) << "at " << w.x;
  RecordProperty("worst_ulp", std::to_string(w.error));
  float top = 0, x = 88.0f;  // the last range below overflow: 2^128 itself is no f32
  for (; x < 88.722839f; x = std::nextafter(x, kInf)) {
    const float y = one(vector_exp, x);
    ASSERT_LE(ulp_error(y, std::exp(static_cast<double>(x))), 2.0) << x;
    top = y;
  }
  EXPECT_GT(top, 3.4e38f);
}

TEST(SimdExp, HandlesTheEnds) {
  EXPECT_EQ(one(vector_exp, 0.0f), 1.0f);
  EXPECT_EQ(one(vector_exp, -0.0f), 1.0f);
  EXPECT_EQ(one(vector_exp, kInf), kInf);
  EXPECT_EQ(one(vector_exp, -kInf), 0.0f);
  EXPECT_EQ(one(vector_exp, 88.722839f), kInf);
  EXPECT_EQ(one(vector_exp, 1e30f), kInf);
  EXPECT_EQ(one(vector_exp, -87.34f), 0.0f);
  EXPECT_EQ(one(vector_exp, -1e30f), 0.0f);
  EXPECT_TRUE(std::isnan(one(vector_exp, kNan)));
  EXPECT_TRUE(std::isnan(one(vector_exp, -kNan)));
}

TEST(SimdTanh, StaysWithinFourUlp) {
  const Worst w = sweep(
      vector_tanh, [](double x) { return std::tanh(x); }, 1e-38f, 100.0f);
  EXPECT_LE(w.error, 4.0) << "at " << w.x;
  RecordProperty("worst_ulp", std::to_string(w.error));
}

TEST(SimdTanh, HandlesTheEnds) {
  EXPECT_EQ(one(vector_tanh, 0.0f), 0.0f);
  EXPECT_FALSE(std::signbit(one(vector_tanh, 0.0f)));
  EXPECT_TRUE(std::signbit(one(vector_tanh, -0.0f)));
  EXPECT_EQ(one(vector_tanh, kInf), 1.0f);
  EXPECT_EQ(one(vector_tanh, -kInf), -1.0f);
  EXPECT_EQ(one(vector_tanh, 1e-40f), 1e-40f);
  EXPECT_TRUE(std::isnan(one(vector_tanh, kNan)));
}

TEST(SimdMath, AnElementDoesNotDependOnItsLane) {
  std::vector<float> x(67), whole(67);
  for (int i = 0; i < 67; ++i) x[to_size(i)] = 0.37f * static_cast<float>(i - 30);
  for (const Function f : {vector_exp, vector_tanh}) {
    f(x.data(), whole.data(), 67);
    for (std::size_t i = 0; i < x.size(); ++i) {
      EXPECT_EQ(std::bit_cast<std::uint32_t>(one(f, x[i])), std::bit_cast<std::uint32_t>(whole[i]));
    }
  }
}

TEST(SimdReduce, AddsByHalves) {
  const int n = BALLAST_ISA_CALL(test, lanes);
  std::vector<float> x(to_size(n));
  for (int i = 0; i < n; ++i) {
    x[to_size(i)] = std::ldexp(1.0f + 0.1f * static_cast<float>(i), i % 5 * 7);
  }
  std::vector<float> sum = x;
  for (std::size_t half = x.size() / 2; half > 0; half /= 2) {
    for (std::size_t i = 0; i < half; ++i) sum[i] += sum[i + half];
  }
  EXPECT_EQ(BALLAST_ISA_CALL(test, sum_of_lanes, x.data()), sum[0]);
  EXPECT_EQ(BALLAST_ISA_CALL(test, max_of_lanes, x.data()), *std::max_element(x.begin(), x.end()));
}

}  // namespace
}  // namespace ballast
