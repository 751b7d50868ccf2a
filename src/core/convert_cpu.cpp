#include "core/simd_convert.h"

namespace ballast::cpu::BALLAST_ISA {
namespace {

using namespace simd::BALLAST_ISA;

// f64 goes through f32 in pieces of this many elements, which stay in the L1 cache.
constexpr std::int64_t kPiece = 256;

template <DType From, DType To, Rounding R>
void convert_run(const void* from, void* to, std::int64_t n) {
  const auto* a = static_cast<const Element<From>*>(from);
  auto* b = static_cast<Element<To>*>(to);
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store_f32<To, R>(b + i, load_f32<From>(a + i));
  if (i < n) store_f32_partial<To, R>(b + i, load_f32_partial<From>(a + i, n - i), n - i);
}

// Toward zero, and the last bit set when anything was lost: rounding the result again, to a format
// with at least two bits less, gives what rounding x once would have given.
inline float round_to_odd(double x) {
  const auto nearest = static_cast<float>(x);
  const auto back = static_cast<double>(nearest);
  std::uint32_t b;
  std::memcpy(&b, &nearest, sizeof b);
  const bool inexact = (back < x) | (back > x);
  const bool away = __builtin_fabs(back) > __builtin_fabs(x);
  b = (b - (away ? 1u : 0u)) | (inexact ? 1u : 0u);
  float odd;
  std::memcpy(&odd, &b, sizeof b);
  return odd;
}

void f64_to_odd_f32(const std::byte* from, float* to, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    double x;
    std::memcpy(&x, from + i * 8, sizeof x);
    to[i] = round_to_odd(x);
  }
}

void f64_to_f32(const std::byte* from, std::byte* to, std::int64_t n, Rounding rounding) {
  for (std::int64_t i = 0; i < n; ++i) {
    double x;
    std::memcpy(&x, from + i * 8, sizeof x);
    auto y = static_cast<float>(x);
    if (rounding == Rounding::saturating) {
      y = y > 0x1.fffffep127f ? 0x1.fffffep127f : y;
      y = y < -0x1.fffffep127f ? -0x1.fffffep127f : y;
    }
    std::memcpy(to + i * 4, &y, sizeof y);
  }
}

template <class From, class To>
void cast_run(const std::byte* from, std::byte* to, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    From x;
    std::memcpy(&x, from + i * static_cast<std::int64_t>(sizeof(From)), sizeof x);
    const auto y = static_cast<To>(x);
    std::memcpy(to + i * static_cast<std::int64_t>(sizeof(To)), &y, sizeof y);
  }
}

template <class F>
void with_narrow(DType t, F&& f) {
  with_dtype<DType::f32, DType::f16, DType::bf16, DType::f8_e4m3, DType::f8_e5m2>(t, f);
}

template <class F>
void with_source(DType t, F&& f) {
  with_narrow(t, f);
  with_dtype<DType::i8, DType::u8, DType::i16, DType::u16, DType::boolean>(t, f);
}

}  // namespace

void convert(const void* from, DType from_type, void* to, DType to_type, std::int64_t n,
             Rounding rounding) {
  const auto* a = static_cast<const std::byte*>(from);
  auto* b = static_cast<std::byte*>(to);
  const bool saturating = rounding == Rounding::saturating;

  with_dtype<DType::i32, DType::u32, DType::i64, DType::u64>(from_type, [&](auto tag) {
    using Wide = Element<tag()>;
    if (to_type == DType::f64) return cast_run<Wide, double>(a, b, n);
    return cast_run<Wide, float>(a, b, n);
  });
  with_source(from_type, [&](auto source) {
    constexpr DType From = source;
    with_narrow(to_type, [&](auto target) {
      constexpr DType To = target;
      if (saturating) return convert_run<From, To, Rounding::saturating>(a, b, n);
      return convert_run<From, To, Rounding::nearest>(a, b, n);
    });
    if (to_type != DType::f64) return;
    float piece[kPiece];
    for (std::int64_t i = 0; i < n; i += kPiece) {
      const std::int64_t count = n - i < kPiece ? n - i : kPiece;
      convert_run<From, DType::f32, Rounding::nearest>(
          a + i * static_cast<std::int64_t>(sizeof(Element<From>)), piece, count);
      cast_run<float, double>(reinterpret_cast<const std::byte*>(piece), b + i * 8, count);
    }
  });
  if (from_type != DType::f64) return;
  if (to_type == DType::f32) return f64_to_f32(a, b, n, rounding);
  with_dtype<DType::f16, DType::bf16, DType::f8_e4m3, DType::f8_e5m2>(to_type, [&](auto target) {
    constexpr DType To = target;
    float piece[kPiece];
    for (std::int64_t i = 0; i < n; i += kPiece) {
      const std::int64_t count = n - i < kPiece ? n - i : kPiece;
      f64_to_odd_f32(a + i * 8, piece, count);
      std::byte* out = b + i * static_cast<std::int64_t>(sizeof(Element<To>));
      if (saturating) {
        convert_run<DType::f32, To, Rounding::saturating>(piece, out, count);
      } else {
        convert_run<DType::f32, To, Rounding::nearest>(piece, out, count);
      }
    }
  });
}

}  // namespace ballast::cpu::BALLAST_ISA
