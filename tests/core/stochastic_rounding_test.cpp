#include "core/stochastic_rounding.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "core/convert.h"
#include "core/error.h"
#include "tests/ref/number_formats.h"

namespace ballast {
namespace {

constexpr DType kFormats[] = {DType::f16, DType::bf16, DType::f8_e4m3, DType::f8_e5m2};

// The rule by definition: the distance of |x| to its lower neighbour, in units of the gap, plus the
// upper bits of the word as a fraction; as many bits as the rounding drops, 24 for a subnormal.
double reference(float x, DType t, std::uint32_t word) {
  const ref::Format f = ref::format_of(t);
  if (std::isnan(x) || std::isinf(x)) return ref::round(x, t, Rounding::nearest);
  const double a = std::fabs(static_cast<double>(x));
  const int e = a == 0 ? f.min_exponent : std::max(std::ilogb(a), f.min_exponent);
  const double scaled = std::ldexp(a, f.mantissa - e);
  const bool subnormal = a < std::ldexp(1.0, f.min_exponent);
  const int bits = subnormal && t != DType::bf16 ? 24 : 23 - f.mantissa;
  const double u = std::ldexp(static_cast<double>(word >> (32 - bits)), -bits);
  const double up = std::floor(scaled) + std::floor(scaled - std::floor(scaled) + u);
  return std::copysign(std::min(std::ldexp(up, e - f.mantissa), f.largest), x);
}

std::vector<double> rounded(const std::vector<float>& x, DType t, const RandomSource& s,
                            std::uint64_t first = 0) {
  std::vector<std::byte> codes(x.size() * size_of(t));
  round_stochastically(x.data(), codes.data(), t, static_cast<std::int64_t>(x.size()), s, first);
  std::vector<double> y(x.size());
  convert(codes.data(), t, y.data(), DType::f64, static_cast<std::int64_t>(x.size()));
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
  for (const DType t : kFormats) {
    const std::vector<double> y = rounded(x, t, s);
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double want = reference(x[i], t, s.word(i));
      if (std::isnan(want)) {
        ASSERT_TRUE(std::isnan(y[i])) << x[i];
      } else {
        ASSERT_EQ(y[i], want) << std::hexfloat << x[i] << " " << name_of(t);
        ASSERT_EQ(std::signbit(y[i]), std::signbit(x[i]));
      }
    }
  }
}

TEST(StochasticRounding, ExactValuesNeverMove) {
  for (const DType t : kFormats) {
    const std::uint32_t codes = 1u << (8 * size_of(t));
    std::vector<float> x;
    for (std::uint32_t c = 0; c < codes; ++c) {
      if (std::isfinite(to_f32(c, t))) x.push_back(to_f32(c, t));
    }
    for (int step = 0; step < 8; ++step) {
      const std::vector<double> y = rounded(x, t, random_source(1, "r", step, "x"));
      for (std::size_t i = 0; i < x.size(); ++i) ASSERT_EQ(y[i], x[i]) << name_of(t);
    }
  }
}

TEST(StochasticRounding, KeepsTheMean) {
  const int n = 1 << 16;
  for (const DType t : kFormats) {
    const ref::Format f = ref::format_of(t);
    // A normal and a subnormal, three tenths of the way to the next value.
    for (const double gap :
         {std::ldexp(1.0, -f.mantissa), std::ldexp(1.0, f.min_exponent - f.mantissa)}) {
      const double lo = gap == std::ldexp(1.0, -f.mantissa) ? 1.0 : gap;
      const auto value = static_cast<float>(lo + 0.3 * gap);
      const std::vector<float> x(n, value);
      double sum = 0;
      for (const double y : rounded(x, t, random_source(3, "r", 0, "mean"))) {
        ASSERT_TRUE(y == lo || y == lo + gap) << y;
        sum += (y - lo) / gap;
      }
      // Five standard deviations of the mean of n draws with probability 0.3.
      const double p = (static_cast<double>(value) - lo) / gap;
      EXPECT_NEAR(sum / n, p, 5 * std::sqrt(p * (1 - p) / n)) << name_of(t) << " " << value;
    }
  }
}

TEST(StochasticRounding, FiniteStaysFiniteAndSpecialsAreAsInConvert) {
  const float inf = std::numeric_limits<float>::infinity();
  const float top = std::numeric_limits<float>::max();
  const std::vector<float> x = {top, -top, inf, -inf, std::nanf(""), -std::nanf("")};
  for (const DType t : kFormats) {
    for (int step = 0; step < 20; ++step) {
      std::vector<std::uint16_t> codes(x.size(), 0);
      const RandomSource s = random_source(1, "r", step, "x");
      std::vector<std::byte> out(x.size() * size_of(t));
      round_stochastically(x.data(), out.data(), t, 6, s, 0);
      for (std::size_t i = 0; i < x.size(); ++i) {
        std::memcpy(&codes[i], out.data() + i * size_of(t), size_of(t));
      }
      EXPECT_EQ(to_f32(codes[0], t), largest(t));
      EXPECT_EQ(to_f32(codes[1], t), -largest(t));
      for (std::size_t i = 2; i < x.size(); ++i) {
        EXPECT_EQ(codes[i], from_f32(x[i], t)) << name_of(t) << " " << x[i];
      }
    }
  }
}

TEST(StochasticRounding, DoesNotDependOnTheChunks) {
  const RandomSource s = random_source(5, "rounding", 9, "m");
  std::vector<float> x(700);
  fill_normal(s, 0, x.data(), 700);
  const std::uint64_t first = (1ull << 34) - 100;  // the block number passes 2^32
  for (const DType t : kFormats) {
    const std::vector<double> whole = rounded(x, t, s, first);
    std::size_t at = 0;
    for (std::size_t n = 1; at < x.size(); n += 5) {
      const std::size_t count = std::min(n, x.size() - at);
      const std::vector<float> piece(x.begin() + static_cast<std::ptrdiff_t>(at),
                                     x.begin() + static_cast<std::ptrdiff_t>(at + count));
      const std::vector<double> y = rounded(piece, t, s, first + at);
      for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(y[i], whole[at + i]);
      at += count;
    }
  }
}

TEST(StochasticRounding, RefusesFormatsThatDropNothing) {
  const float x = 1;
  float y = 0;
  EXPECT_THROW(round_stochastically(&x, &y, DType::f32, 1, {}, 0), Error);
}

}  // namespace
}  // namespace ballast
