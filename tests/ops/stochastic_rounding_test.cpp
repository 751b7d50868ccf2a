// How optimizers write bf16 parameters where they round at random, by definition.

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "core/convert.h"
#include "core/thread_pool.h"
#include "ops/sgd.h"
#include "tests/ref/number_formats.h"
#include "tests/support/test_device.h"

namespace ballast::ops::stochastic_rounding_test {
namespace {

constexpr DType kBf16 = DType::bf16;

// The rule by definition: the distance of |x| to its lower neighbour, in units of the gap, plus the
// upper bits of the word as a fraction, as many as the rounding drops.
double reference(float x, std::uint32_t word) {
  const ref::Format f = ref::format_of(kBf16);
  if (std::isnan(x) || std::isinf(x)) return ref::round(x, kBf16, Rounding::nearest);
  const double a = std::fabs(static_cast<double>(x));
  const int e = a == 0 ? f.min_exponent : std::max(std::ilogb(a), f.min_exponent);
  const double scaled = std::ldexp(a, f.mantissa - e);
  const int bits = 23 - f.mantissa;
  const double u = std::ldexp(static_cast<double>(word >> (32 - bits)), -bits);
  const double up = std::floor(scaled) + std::floor(scaled - std::floor(scaled) + u);
  return std::copysign(std::min(std::ldexp(up, e - f.mantissa), f.largest), x);
}

// 0 + x, the step of an optimizer from a parameter of zeros.
std::vector<std::uint16_t> codes_of(const std::vector<float>& x, const RandomSource& s,
                                    std::uint64_t first = 0) {
  const auto n = static_cast<std::int64_t>(x.size());
  std::vector<std::uint16_t> codes(x.size(), 0);
  ThreadPool pool(1);
  sgd({.p = {reinterpret_cast<std::byte*>(codes.data()), kBf16, {n}},
       .b = {},
       .g = {reinterpret_cast<const std::byte*>(x.data()), DType::f32, {n}},
       .grad_scale = {},
       .options = {},
       .learning_rate = -1,
       .rounding = {.rounding = UpdateRounding::stochastic,
                    .random = s,
                    .first_element = static_cast<std::int64_t>(first)}},
      support::test_stream(pool));
  return codes;
}

std::vector<double> rounded(const std::vector<float>& x, const RandomSource& s,
                            std::uint64_t first = 0) {
  std::vector<double> y;
  for (const std::uint16_t code : codes_of(x, s, first)) y.push_back(to_f32(code, kBf16));
  return y;
}

TEST(StochasticRounding, FollowsItsDefinition) {
  const RandomSource s = random_source(5, "rounding", 9, "m");
  std::mt19937 random(2);
  std::vector<float> x(1 << 18);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const auto bits = static_cast<std::uint32_t>(random());
    // Half any bit pattern, half exponents around the 8-bit and 16-bit ranges.
    x[i] = i % 2 ? std::bit_cast<float>(bits)
                 : std::ldexp(std::bit_cast<float>(0x3f800000u | (bits >> 9)),
                              static_cast<int>(random() % 48) - 30);
  }
  const std::vector<double> y = rounded(x, s);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double want = reference(x[i], s.word(i));
    if (std::isnan(want)) {
      ASSERT_TRUE(std::isnan(y[i])) << x[i];
    } else {
      ASSERT_EQ(y[i], want) << std::hexfloat << x[i];
      ASSERT_EQ(std::signbit(y[i]), std::signbit(x[i]));
    }
  }
}

TEST(StochasticRounding, ExactValuesNeverMove) {
  const std::uint32_t codes = 1u << 16;
  std::vector<float> x;
  for (std::uint32_t c = 0; c < codes; ++c) {
    if (std::isfinite(to_f32(c, kBf16))) x.push_back(to_f32(c, kBf16));
  }
  for (int step = 0; step < 8; ++step) {
    const std::vector<double> y = rounded(x, random_source(1, "r", step, "x"));
    for (std::size_t i = 0; i < x.size(); ++i) ASSERT_EQ(y[i], x[i]);
  }
}

TEST(StochasticRounding, KeepsTheMean) {
  const int n = 1 << 16;
  const ref::Format f = ref::format_of(kBf16);
  // A normal and a subnormal, three tenths of the way to the next value.
  for (const double gap :
       {std::ldexp(1.0, -f.mantissa), std::ldexp(1.0, f.min_exponent - f.mantissa)}) {
    const double lo = gap == std::ldexp(1.0, -f.mantissa) ? 1.0 : gap;
    const auto value = static_cast<float>(lo + 0.3 * gap);
    const std::vector<float> x(n, value);
    double sum = 0;
    for (const double y : rounded(x, random_source(3, "r", 0, "mean"))) {
      ASSERT_TRUE(y == lo || y == lo + gap) << y;
      sum += (y - lo) / gap;
    }
    // Five standard deviations of the mean of n draws with probability 0.3.
    const double p = (static_cast<double>(value) - lo) / gap;
    EXPECT_NEAR(sum / n, p, 5 * std::sqrt(p * (1 - p) / n)) << value;
  }
}

TEST(StochasticRounding, FiniteStaysFiniteAndSpecialsAreAsInConvert) {
  const float inf = std::numeric_limits<float>::infinity();
  const float top = std::numeric_limits<float>::max();
  const std::vector<float> x = {top, -top, inf, -inf, std::nanf(""), -std::nanf("")};
  for (int step = 0; step < 20; ++step) {
    const std::vector<std::uint16_t> codes = codes_of(x, random_source(1, "r", step, "x"));
    EXPECT_EQ(to_f32(codes[0], kBf16), largest(kBf16));
    EXPECT_EQ(to_f32(codes[1], kBf16), -largest(kBf16));
    for (std::size_t i = 2; i < x.size(); ++i) {
      EXPECT_EQ(codes[i], from_f32(x[i], kBf16)) << x[i];
    }
  }
}

TEST(StochasticRounding, DoesNotDependOnTheChunks) {
  const RandomSource s = random_source(5, "rounding", 9, "m");
  std::vector<float> x(700);
  fill_normal(s, 0, x.data(), 700);
  const std::uint64_t first = (1ull << 34) - 100;  // the block number passes 2^32
  const std::vector<double> whole = rounded(x, s, first);
  std::size_t at = 0;
  for (std::size_t n = 1; at < x.size(); n += 5) {
    const std::size_t count = std::min(n, x.size() - at);
    const std::vector<float> piece(x.begin() + static_cast<std::ptrdiff_t>(at),
                                   x.begin() + static_cast<std::ptrdiff_t>(at + count));
    const std::vector<double> y = rounded(piece, s, first + at);
    for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(y[i], whole[at + i]);
    at += count;
  }
}

}  // namespace
}  // namespace ballast::ops::stochastic_rounding_test
