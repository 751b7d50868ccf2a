#include "core/convert.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "core/error.h"
#include "core/to_size.h"
#include "tests/ref/number_formats.h"
#include "tests/support/paths.h"
#include "tests/support/tiny_safetensors.h"

namespace ballast {
namespace {

constexpr DType kNarrow[] = {DType::f16, DType::bf16, DType::f8_e4m3, DType::f8_e5m2};
constexpr Rounding kRoundings[] = {Rounding::nearest, Rounding::saturating};

std::uint32_t code_at(const void* p, std::size_t i, DType t) {
  std::uint32_t code = 0;
  std::memcpy(&code, static_cast<const std::byte*>(p) + i * size_of(t), size_of(t));
  return code;
}

template <class T>
std::vector<std::byte> converted(const std::vector<T>& from, DType from_type, DType to_type,
                                 Rounding rounding) {
  std::vector<std::byte> to(from.size() * size_of(to_type));
  convert(from.data(), from_type, to.data(), to_type, static_cast<std::int64_t>(from.size()),
          rounding);
  return to;
}

// Same value, sign of zero included; any NaN is any NaN.
bool same_value(double a, double b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  return a == b && std::signbit(a) == std::signbit(b);
}

template <class T>
void expect_reference_rounding(const std::vector<T>& x, DType from_type, DType to) {
  for (const Rounding rounding : kRoundings) {
    const std::vector<std::byte> y = converted(x, from_type, to, rounding);
    int wrong = 0;
    for (std::size_t i = 0; i < x.size() && wrong < 5; ++i) {
      const double got = ref::decode(code_at(y.data(), i, to), to);
      const double want = ref::round(static_cast<double>(x[i]), to, rounding);
      if (!same_value(got, want)) {
        ++wrong;
        ADD_FAILURE() << std::hexfloat << x[i] << " to " << name_of(to) << " gives " << got
                      << ", not " << want;
      }
    }
  }
}

std::vector<float> random_bit_patterns(int n) {
  std::mt19937 random(17);
  std::vector<float> x(to_size(n));
  for (float& v : x) v = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
  return x;
}

TEST(NumberFormats, EveryCodeDecodesToItsValue) {
  for (const DType t : kNarrow) {
    const std::uint32_t codes = 1u << (8 * size_of(t));
    std::vector<std::byte> all(codes * size_of(t));
    for (std::uint32_t c = 0; c < codes; ++c) {
      std::memcpy(all.data() + c * size_of(t), &c, size_of(t));
    }
    std::vector<float> f32(codes);
    std::vector<double> f64(codes);
    convert(all.data(), t, f32.data(), DType::f32, codes);
    convert(all.data(), t, f64.data(), DType::f64, codes);
    for (std::uint32_t c = 0; c < codes; ++c) {
      const double want = ref::decode(c, t);
      ASSERT_TRUE(same_value(f32[c], want)) << name_of(t) << " code " << c << ": " << f32[c];
      ASSERT_TRUE(same_value(f64[c], want)) << name_of(t) << " code " << c << ": " << f64[c];
      ASSERT_TRUE(same_value(to_f32(c, t), want)) << name_of(t) << " code " << c;
    }
  }
}

TEST(NumberFormats, EveryCodeSurvivesTheWayThroughF32AndF64) {
  for (const DType t : kNarrow) {
    const std::uint32_t codes = 1u << (8 * size_of(t));
    for (const Rounding rounding : kRoundings) {
      for (std::uint32_t c = 0; c < codes; ++c) {
        const float x = to_f32(c, t);
        if (std::isnan(x)) {
          ASSERT_TRUE(std::isnan(ref::decode(from_f32(x, t, rounding), t))) << c;
          continue;
        }
        if (std::isinf(x) && rounding == Rounding::saturating) continue;
        ASSERT_EQ(from_f32(x, t, rounding), c) << name_of(t);
        const auto wide = static_cast<double>(x);
        std::uint32_t back = 0;
        convert(&wide, DType::f64, &back, t, 1, rounding);
        ASSERT_EQ(back, c) << name_of(t);
      }
    }
  }
}

TEST(NumberFormats, TiesAndTheirNeighboursRoundToEven) {
  for (const DType t : kNarrow) {
    const std::uint32_t codes = 1u << (8 * size_of(t) - 1);
    std::vector<float> x;
    for (std::uint32_t c = 0; c + 1 < codes; ++c) {
      const float lo = to_f32(c, t), hi = to_f32(c + 1, t);
      if (!std::isfinite(lo) || !std::isfinite(hi)) continue;
      const auto middle = static_cast<float>((static_cast<double>(lo) + hi) / 2);
      for (const float v : {middle, std::nextafter(middle, 0.0f), std::nextafter(middle, hi)}) {
        x.push_back(v);
        x.push_back(-v);
      }
    }
    // Beyond the largest value: the point where a next code would have been the nearer one.
    const float top = largest(t);
    const float below = to_f32(from_f32(top, t) - 1, t);
    const float overflow = top + (top - below) / 2;
    for (const float v : {top, overflow, std::nextafter(overflow, 0.0f),
                          std::nextafter(overflow, std::numeric_limits<float>::infinity())}) {
      x.push_back(v);
      x.push_back(-v);
    }
    expect_reference_rounding(x, DType::f32, t);
  }
}

TEST(NumberFormats, RandomF32RoundsLikeTheReference) {
  const std::vector<float> x = random_bit_patterns(1 << 20);
  std::mt19937 random(3);
  std::vector<float> moderate(1 << 18);  // where the 8-bit formats have their codes
  for (float& v : moderate) {
    v = std::ldexp(std::bit_cast<float>(0x3f800000u | static_cast<std::uint32_t>(random() >> 9)),
                   static_cast<int>(random() % 36) - 19);
  }
  for (const DType t : kNarrow) {
    expect_reference_rounding(x, DType::f32, t);
    expect_reference_rounding(moderate, DType::f32, t);
  }
}

TEST(NumberFormats, F64RoundsOnce) {
  std::mt19937_64 random(5);
  std::vector<double> x;
  for (int i = 0; i < 200000; ++i) {
    x.push_back(std::ldexp(1.0 + static_cast<double>(random() >> 12) * 0x1p-52,
                           static_cast<int>(random() % 320) - 170) *
                (i % 2 ? -1.0 : 1.0));
  }
  // Midpoints of every format moved by less than half an f32 unit: rounding by way of a plain f32
  // would see a tie.
  for (const DType t : kNarrow) {
    for (std::uint32_t c = 1; c < (1u << (8 * size_of(t) - 1)); c += size_of(t) == 2 ? 37 : 1) {
      const double lo = ref::decode(c - 1, t), hi = ref::decode(c, t);
      if (!std::isfinite(lo) || !std::isfinite(hi)) continue;
      const double middle = (lo + hi) / 2;
      for (const double v : {middle, middle * (1 + 0x1p-45), middle * (1 - 0x1p-45)}) {
        x.push_back(v);
      }
    }
  }
  for (const double v :
       {0.0, -0.0, 1e300, -1e300, 1e-300, std::ldexp(1.0, -149), std::ldexp(1.0, -150),
        std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity(),
        std::nan(""), static_cast<double>(std::numeric_limits<float>::max())}) {
    x.push_back(v);
  }
  for (const DType t : kNarrow) expect_reference_rounding(x, DType::f64, t);
  expect_reference_rounding(x, DType::f64, DType::f32);
}

TEST(NumberFormats, NarrowFormatsConvertToEachOther) {
  for (const DType from : kNarrow) {
    const std::uint32_t codes = 1u << (8 * size_of(from));
    std::vector<std::byte> all(codes * size_of(from));
    for (std::uint32_t c = 0; c < codes; ++c) {
      std::memcpy(all.data() + c * size_of(from), &c, size_of(from));
    }
    for (const DType to : kNarrow) {
      for (const Rounding rounding : kRoundings) {
        std::vector<std::byte> out(codes * size_of(to));
        convert(all.data(), from, out.data(), to, codes, rounding);
        for (std::uint32_t c = 0; c < codes; ++c) {
          const std::uint32_t got = code_at(out.data(), c, to);
          if (from == to) {
            ASSERT_EQ(got, c) << "a copy keeps every bit";
          } else {
            ASSERT_TRUE(
                same_value(ref::decode(got, to), ref::round(ref::decode(c, from), to, rounding)))
                << name_of(from) << " " << c << " to " << name_of(to);
          }
        }
      }
    }
  }
}

TEST(NumberFormats, SpecialValuesHaveTheirCodes) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(from_f32(nan, DType::bf16), 0x7fc0u);
  EXPECT_EQ(from_f32(-nan, DType::bf16), 0x7fc0u);
  EXPECT_EQ(from_f32(nan, DType::f16) & 0x7e00u, 0x7e00u);
  EXPECT_EQ(from_f32(nan, DType::f8_e4m3), 0x7fu);
  EXPECT_EQ(from_f32(-nan, DType::f8_e4m3), 0xffu);
  EXPECT_EQ(from_f32(inf, DType::f8_e4m3), 0x7fu);
  EXPECT_EQ(from_f32(-inf, DType::f8_e4m3), 0xffu);
  EXPECT_EQ(from_f32(nan, DType::f8_e5m2), 0x7fu);
  EXPECT_EQ(from_f32(-inf, DType::f8_e5m2), 0xfcu);
  EXPECT_EQ(from_f32(1e-40f, DType::bf16), 0x0001u);
  EXPECT_EQ(from_f32(3.4028235e38f, DType::bf16), 0x7f80u);
  EXPECT_EQ(from_f32(65519.99f, DType::f16), 0x7bffu);
  EXPECT_EQ(from_f32(65520.0f, DType::f16), 0x7c00u);
  EXPECT_EQ(from_f32(0x1p-25f, DType::f16), 0x0000u);
  EXPECT_EQ(from_f32(1.0001f * 0x1p-25f, DType::f16), 0x0001u);
  const struct {
    float x;
    std::uint32_t e4m3, e5m2;
  } vectors[] = {{448, 0x7e, 0x5f},           {464, 0x7e, 0x5f},      {464.0001f, 0x7f, 0x5f},
                 {480, 0x7f, 0x60},           {57344, 0x7f, 0x7b},    {61439.99f, 0x7f, 0x7b},
                 {61440, 0x7f, 0x7c},         {0x1p-9f, 0x01, 0x18},  {0x1p-10f, 0x00, 0x14},
                 {1.5f * 0x1p-10f, 1, 0x16},  {0x1p-16f, 0x00, 0x01}, {0x1p-17f, 0x00, 0x00},
                 {1.5f * 0x1p-17f, 0x00, 1u}, {-0.0f, 0x80, 0x80}};
  for (const auto& v : vectors) {
    EXPECT_EQ(from_f32(v.x, DType::f8_e4m3), v.e4m3) << v.x;
    EXPECT_EQ(from_f32(v.x, DType::f8_e5m2), v.e5m2) << v.x;
  }
  EXPECT_EQ(from_f32(inf, DType::f8_e4m3, Rounding::saturating), 0x7eu);
  EXPECT_EQ(from_f32(-1e30f, DType::f8_e5m2, Rounding::saturating), 0xfbu);
  EXPECT_EQ(from_f32(inf, DType::f16, Rounding::saturating), 0x7bffu);
  EXPECT_EQ(from_f32(-inf, DType::bf16, Rounding::saturating), 0xff7fu);
}

// An element's bits must not depend on the length of the call or on where the memory starts.
TEST(NumberFormats, PiecesAtAnyByteOffsetGiveTheSameBits) {
  const std::vector<float> x = random_bit_patterns(301);
  const DType all[] = {DType::f64,  DType::f32,     DType::f16,
                       DType::bf16, DType::f8_e4m3, DType::f8_e5m2};
  for (const DType from : all) {
    const std::vector<std::byte> source = converted(x, DType::f32, from, Rounding::nearest);
    for (const DType to : all) {
      std::vector<std::byte> whole(x.size() * size_of(to));
      convert(source.data(), from, whole.data(), to, 301);
      std::vector<std::byte> in(source.size() + 3), out(whole.size() + 5, std::byte{0xab});
      std::memcpy(in.data() + 3, source.data(), source.size());
      std::size_t at = 0;
      for (std::size_t n = 0; at < x.size(); ++n) {
        const std::size_t count = std::min(n, x.size() - at);
        convert(in.data() + 3 + at * size_of(from), from, out.data() + 1 + at * size_of(to), to,
                static_cast<std::int64_t>(count));
        at += count;
      }
      EXPECT_EQ(std::memcmp(out.data() + 1, whole.data(), whole.size()), 0)
          << name_of(from) << " to " << name_of(to);
      EXPECT_EQ(out.front(), std::byte{0xab});
      for (std::size_t i = whole.size() + 1; i < out.size(); ++i) {
        EXPECT_EQ(out[i], std::byte{0xab}) << "wrote past the end";
      }
    }
  }
}

TEST(NumberFormats, IntegersBecomeFloats) {
  std::vector<std::int16_t> i16(65536);
  for (int i = 0; i < 65536; ++i) i16[to_size(i)] = static_cast<std::int16_t>(i);
  std::vector<float> f32(i16.size());
  std::vector<double> f64(i16.size());
  convert(i16.data(), DType::i16, f32.data(), DType::f32, 65536);
  for (std::size_t i = 0; i < i16.size(); ++i) ASSERT_EQ(f32[i], static_cast<float>(i16[i]));
  convert(i16.data(), DType::u16, f64.data(), DType::f64, 65536);
  for (std::size_t i = 0; i < i16.size(); ++i) ASSERT_EQ(f64[i], static_cast<double>(i));
  std::vector<std::uint16_t> bf16(i16.size());
  convert(i16.data(), DType::i16, bf16.data(), DType::bf16, 65536);
  for (std::size_t i = 0; i < i16.size(); ++i) {
    ASSERT_EQ(to_f32(bf16[i], DType::bf16), ref::round(i16[i], DType::bf16, Rounding::nearest));
  }

  const std::uint8_t bytes[] = {0, 1, 2, 127, 128, 255};
  float out[6];
  convert(bytes, DType::i8, out, DType::f32, 6);
  EXPECT_EQ(std::vector<float>(out, out + 6), (std::vector<float>{0, 1, 2, 127, -128, -1}));
  convert(bytes, DType::u8, out, DType::f32, 6);
  EXPECT_EQ(std::vector<float>(out, out + 6), (std::vector<float>{0, 1, 2, 127, 128, 255}));
  convert(bytes, DType::boolean, out, DType::f32, 6);
  EXPECT_EQ(std::vector<float>(out, out + 6), (std::vector<float>{0, 1, 1, 1, 1, 1}));

  // One rounding: 2^40 + 2^16 + 1 lies above the middle of two f32 values, 2^40 + 2^16 on it.
  const std::int64_t wide[] = {(1ll << 40) + (1ll << 16) + 1, (1ll << 40) + (1ll << 16), -3};
  convert(wide, DType::i64, out, DType::f32, 3);
  EXPECT_EQ(out[0], 0x1p40f + 0x1p17f);
  EXPECT_EQ(out[1], 0x1p40f);
  EXPECT_EQ(out[2], -3.0f);
  const std::uint64_t huge = ~0ull;
  double d = 0;
  convert(&huge, DType::u64, &d, DType::f64, 1);
  EXPECT_EQ(d, 0x1p64);
  const std::uint32_t u32 = 0xffffffffu;
  convert(&u32, DType::u32, &d, DType::f64, 1);
  EXPECT_EQ(d, 4294967295.0);
}

TEST(NumberFormats, ConversionsThatMeanNothingAreRefused) {
  EXPECT_FALSE(convertible(DType::f32, DType::i8));
  EXPECT_FALSE(convertible(DType::i64, DType::bf16));
  EXPECT_FALSE(convertible(DType::u8, DType::boolean));
  EXPECT_TRUE(convertible(DType::i64, DType::i64));
  EXPECT_TRUE(convertible(DType::boolean, DType::f8_e5m2));
  const float x = 1;
  std::int8_t y = 0;
  EXPECT_THROW(convert(&x, DType::f32, &y, DType::i8, 1), Error);
}

TEST(GoldenHalfFormats, EveryValueHasItsBits) {
  const auto file = test::read_tiny_safetensors(test::golden_path("half_formats.safetensors"));
  const std::vector<float> x = file.at("in.f32").as<float>();
  ASSERT_EQ(x.size(), 15314u);
  const struct {
    const char* name;
    DType dtype;
  } formats[] = {{"bf16", DType::bf16},
                 {"fp16", DType::f16},
                 {"f8_e4m3fn", DType::f8_e4m3},
                 {"f8_e5m2", DType::f8_e5m2}};
  for (const auto& f : formats) {
    for (const Rounding rounding : kRoundings) {
      const std::string name =
          std::string("out.") + f.name + (rounding == Rounding::saturating ? ".saturated" : "");
      const test::TinyTensor& want = file.at(name);
      ASSERT_EQ(want.dtype, f.dtype);
      ASSERT_EQ(want.elements(), 15314);
      const std::vector<std::byte> got = converted(x, DType::f32, f.dtype, rounding);
      for (std::size_t i = 0; i < x.size(); ++i) {
        const std::uint32_t a = code_at(got.data(), i, f.dtype);
        const std::uint32_t b = code_at(want.data.data(), i, f.dtype);
        if (std::isnan(ref::decode(b, f.dtype))) {
          ASSERT_TRUE(std::isnan(ref::decode(a, f.dtype))) << name << " of " << x[i];
        } else {
          ASSERT_EQ(a, b) << name << " of " << x[i];
        }
      }
    }
  }
  for (const DType t : {DType::f8_e4m3, DType::f8_e5m2}) {
    const auto table =
        file.at(t == DType::f8_e4m3 ? "table.f8_e4m3fn" : "table.f8_e5m2").as<float>();
    ASSERT_EQ(table.size(), 256u);
    for (std::size_t c = 0; c < 256; ++c) {
      EXPECT_TRUE(same_value(f8_values(t)[c], table[c])) << name_of(t) << " " << c;
    }
  }
}

TEST(GoldenDTypes, EveryTensorReadsAsItsNumbers) {
  const auto file = test::read_tiny_safetensors(test::golden_path("dtypes.safetensors"));
  const auto as_f32 = [&](const std::string& name) {
    const test::TinyTensor& t = file.at(name);
    std::vector<float> out(to_size(t.elements()));
    convert(t.data.data(), t.dtype, out.data(), DType::f32, t.elements());
    return out;
  };
  const auto as_f64 = [&](const std::string& name) {
    const test::TinyTensor& t = file.at(name);
    std::vector<double> out(to_size(t.elements()));
    convert(t.data.data(), t.dtype, out.data(), DType::f64, t.elements());
    return out;
  };
  const std::vector<float> x = as_f32("t.f32");
  ASSERT_EQ(x.size(), 35u);
  for (const char* name : {"f16", "bf16", "f8_e4m3fn", "f8_e5m2"}) {
    const test::TinyTensor& t = file.at(std::string("t.") + name);
    const std::vector<float> got = as_f32(std::string("t.") + name);
    const auto want = file.at(std::string("expect.") + name).as<float>();
    ASSERT_EQ(got.size(), want.size());
    EXPECT_EQ(std::memcmp(got.data(), want.data(), got.size() * 4), 0) << name;
    EXPECT_EQ(converted(x, DType::f32, t.dtype, Rounding::nearest), t.data) << name;
  }
  const auto f64 = file.at("t.f64").as<double>();
  ASSERT_EQ(f64.size(), 35u);
  const std::vector<float> narrowed = as_f32("t.f64");
  for (std::size_t i = 0; i < 35; ++i) {
    EXPECT_EQ(f64[i], static_cast<double>(x[i]) / 3);
    EXPECT_EQ(narrowed[i], static_cast<float>(f64[i]));
  }
  using D = std::vector<double>;
  EXPECT_EQ(as_f64("t.i8"), (D{-128, 0, 1, 127}));
  EXPECT_EQ(as_f64("t.u8"), (D{0, 0, 1, 255}));
  EXPECT_EQ(as_f64("t.i16"), (D{-32768, 0, 1, 32767}));
  EXPECT_EQ(as_f64("t.u16"), (D{0, 0, 1, 65535}));
  EXPECT_EQ(as_f64("t.i32"), (D{-2147483648.0, 0, 1, 2147483647.0}));
  EXPECT_EQ(as_f64("t.u32"), (D{0, 0, 1, 4294967295.0}));
  EXPECT_EQ(as_f64("t.i64"), (D{-0x1p63, 0, 1, 0x1p63}));
  const auto boolean = file.at("t.bool").as<std::uint8_t>();
  const std::vector<float> truth = as_f32("t.bool");
  ASSERT_EQ(truth.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(truth[i], boolean[i] ? 1.0f : 0.0f);
  EXPECT_TRUE(as_f32("t.empty").empty());
  EXPECT_EQ(as_f32("t.scalar").size(), 1u);
  EXPECT_EQ(as_f32("t.rank6").size(), 12u);
  EXPECT_EQ(as_f32("name with spaces and.dots"), std::vector<float>{1.5f});
}

}  // namespace
}  // namespace ballast
