#pragma once

// Number formats for vector kernels: kLanes elements of a dtype read as f32, or f32 written as that
// dtype, so that a kernel works on bf16, f16, fp8 or int8 rows without a pass of its own.
//
//   f32v x = load_f32<T>(p);      load_f32_partial<T>(p, n)      T: any 1- and 2-byte dtype, f32
//   store_f32<T>(p, x);           store_f32_partial<T>(p, x, n)  T: f32 f16 bf16 f8_e4m3 f8_e5m2
//
// Stores round to nearest, ties to even; overflow becomes infinity (NaN in f8_e4m3, which has no
// infinity), or the largest finite value with Rounding::saturating. All conversions are integer
// recipes or exact float operations: every instruction set gives the same bits.

#include <tuple>
#include <type_traits>

#include "core/dtype.h"
#include "core/simd.h"
#include "core/to_size.h"

namespace ballast {

// What happens beyond the largest finite value when f16, bf16, fp8, or f32 from f64, is written. A
// widening conversion is exact and keeps infinities either way.
enum class Rounding : std::uint8_t {
  nearest,     // overflow gives infinity, NaN in f8_e4m3
  saturating,  // overflow and infinity give the largest finite value; NaN stays NaN
};

// The integer or float that holds one element of a dtype: Element<DType::bf16> is std::uint16_t. In
// the order of DType.
using ElementTypes =
    std::tuple<double, float, std::uint16_t, std::uint16_t, std::uint8_t, std::uint8_t, std::int8_t,
               std::uint8_t, std::int16_t, std::uint16_t, std::int32_t, std::uint32_t, std::int64_t,
               std::uint64_t, std::uint8_t>;
template <DType T>
using Element = std::tuple_element_t<to_size(T), ElementTypes>;

}  // namespace ballast

#ifdef BALLAST_ISA

namespace ballast::simd::BALLAST_ISA {

template <DType T>
using DTypeTag = std::integral_constant<DType, T>;

// Calls f(tag) with tag.value == t as a constant, for t one of Ts; nothing for any other t, so
// check the dtype before. Usage: with_dtype<DType::f32, DType::bf16>(t, [&](auto tag) {
//   constexpr DType T = tag; ... load_f32<T>(p) ... });
template <DType... Ts, class F>
inline void with_dtype(DType t, F&& f) {
  (void)((t == Ts && (f(DTypeTag<Ts>{}), true)) || ...);
}

// --- to f32: exact for every code; a NaN stays a NaN.

// Codes stand in the low bits of 32-bit lanes, or in vectors as narrow as they are in memory. The
// former is for loops that widen a whole register of codes at once (ops/linear/linear_expand.h).

inline f32v f16_to_f32(u32v h) {
  const u32v magnitude = (h & 0x7fffu) << 13;
  const u32v normal = magnitude + (112u << 23);
  // Subnormals: 2^-14 (1 + m / 1024) - 2^-14.
  const u32v subnormal = bits(from_bits(magnitude + (113u << 23)) - 0x1p-14f);
  const u32v special = magnitude | 0x7f800000u;
  u32v a = magnitude < (1u << 23) ? subnormal : normal;
  a = magnitude >= (31u << 23) ? special : a;
  return from_bits(a | ((h & 0x8000u) << 16));
}
inline f32v f16_to_f32(u16v v) { return f16_to_f32(zero_extend(v)); }

inline f32v f8_e5m2_to_f32(u32v b) { return f16_to_f32(b << 8); }  // the top byte of an f16
inline f32v f8_e5m2_to_f32(u8v v) { return f8_e5m2_to_f32(zero_extend(v)); }

inline f32v f8_e4m3_to_f32(u32v b) {
  const u32v code = b & 0x7fu;
  const u32v magnitude = code << 20;
  const u32v normal = magnitude + (120u << 23);
  // Subnormals: 2^-6 (1 + m / 8) - 2^-6.
  const u32v subnormal = bits(from_bits(magnitude + (121u << 23)) - 0x1p-6f);
  u32v a = code < 8u ? subnormal : normal;
  a = code == 0x7fu ? (u32v{} + 0x7fc00000u) : a;
  return from_bits(a | ((b & 0x80u) << 24));
}
inline f32v f8_e4m3_to_f32(u8v v) { return f8_e4m3_to_f32(zero_extend(v)); }

// --- from f32.

template <Rounding R>
inline u32v clamp_magnitude(u32v a, std::uint32_t largest) {
  if constexpr (R == Rounding::saturating) {
    a = ((a > largest) & (a <= 0x7f800000u)) ? (u32v{} + largest) : a;
  }
  return a;
}

template <Rounding R = Rounding::nearest>
inline u32v f32_to_bf16_code(f32v v) {
  const u32v sign = bits(v) & 0x80000000u;
  const u32v a = clamp_magnitude<R>(bits(v) & 0x7fffffffu, 0x7f7f0000u);
  const u32v rounded = ((a | sign) + 0x7fffu + ((a >> 16) & 1u)) >> 16;
  return a > 0x7f800000u ? (u32v{} + 0x7fc0u) : rounded;
}
template <Rounding R = Rounding::nearest>
inline u16v f32_to_bf16(f32v v) {
  return __builtin_convertvector(f32_to_bf16_code<R>(v), u16v);
}

template <Rounding R = Rounding::nearest>
inline u16v f32_to_f16(f32v v) {
  const u32v sign = (bits(v) >> 16) & 0x8000u;
  const u32v a = clamp_magnitude<R>(bits(v) & 0x7fffffffu, 0x477fe000u);
  const u32v normal = (a - 0x38000000u + 0xfffu + ((a >> 13) & 1u)) >> 13;
  // 0.5 has 2^-24, the smallest f16, as its last place: the addition rounds to it.
  const u32v subnormal = bits(from_bits(a) + 0.5f) - 0x3f000000u;
  const u32v special = a > 0x7f800000u ? (u32v{} + 0x7e00u) : (u32v{} + 0x7c00u);
  u32v code = a < 0x38800000u ? subnormal : normal;
  code = a >= 0x47800000u ? special : code;
  return __builtin_convertvector(code | sign, u16v);
}

template <Rounding R = Rounding::nearest>
inline u8v f32_to_f8_e4m3(f32v v) {
  const u32v sign = (bits(v) >> 24) & 0x80u;
  const u32v a = clamp_magnitude<R>(bits(v) & 0x7fffffffu, 0x43e00000u);
  const u32v normal = (a - 0x3c000000u + 0x7ffffu + ((a >> 20) & 1u)) >> 20;
  const u32v subnormal = bits(from_bits(a) + 0x1p14f) - 0x46800000u;
  u32v code = a < 0x3c800000u ? subnormal : normal;
  code = a >= 0x43f00000u ? (u32v{} + 0x7fu) : code;  // 480; from 464 up normal is 0x7f by itself
  return low_bytes(code | sign);
}

template <Rounding R = Rounding::nearest>
inline u8v f32_to_f8_e5m2(f32v v) {
  const u32v sign = (bits(v) >> 24) & 0x80u;
  const u32v a = clamp_magnitude<R>(bits(v) & 0x7fffffffu, 0x47600000u);
  const u32v normal = (a - 0x38000000u + 0xfffffu + ((a >> 21) & 1u)) >> 21;
  const u32v subnormal = bits(from_bits(a) + 0x1p7f) - 0x43000000u;
  const u32v special = a > 0x7f800000u ? (u32v{} + 0x7fu) : (u32v{} + 0x7cu);
  u32v code = a < 0x38800000u ? subnormal : normal;
  code = a >= 0x47800000u ? special : code;
  return low_bytes(code | sign);
}

// --- memory.

template <class E>
struct VectorOf;
template <>
struct VectorOf<float> {
  using type = f32v;
};
template <>
struct VectorOf<std::uint16_t> {
  using type = u16v;
};
template <>
struct VectorOf<std::uint8_t> {
  using type = u8v;
};
template <>
struct VectorOf<std::int16_t> {
  using type = std::int16_t __attribute__((vector_size(kLanes * 2)));
};
template <>
struct VectorOf<std::int8_t> {
  using type = std::int8_t __attribute__((vector_size(kLanes)));
};
template <DType T>
using Storage = typename VectorOf<Element<T>>::type;

template <DType T>
inline f32v widen(Storage<T> v) {
  static_assert(size_of(T) <= 2 || T == DType::f32, "read f64 and wide integers with convert()");
  if constexpr (T == DType::f32) {
    return v;
  } else if constexpr (T == DType::bf16) {
    return bf16_to_f32(v);
  } else if constexpr (T == DType::f16) {
    return f16_to_f32(v);
  } else if constexpr (T == DType::f8_e4m3) {
    return f8_e4m3_to_f32(v);
  } else if constexpr (T == DType::f8_e5m2) {
    return f8_e5m2_to_f32(v);
  } else {
    using Bits = std::conditional_t<size_of(T) == 1, std::uint8_t, std::uint16_t>;
    const u32v raw = zero_extend(reinterpret_cast<typename VectorOf<Bits>::type>(v));
    auto wide = reinterpret_cast<i32v>(raw);
    if constexpr (T == DType::boolean) wide = -(wide != 0);  // any byte but 0 is true
    if constexpr (T == DType::i8) wide = (wide << 24) >> 24;
    if constexpr (T == DType::i16) wide = (wide << 16) >> 16;
    return __builtin_convertvector(wide, f32v);
  }
}

template <DType T, Rounding R = Rounding::nearest>
inline Storage<T> narrow(f32v v) {
  static_assert(info(T).floating && T != DType::f64, "f32 narrows to f16, bf16 and fp8 only");
  if constexpr (T == DType::f32) {
    return v;
  } else if constexpr (T == DType::bf16) {
    return f32_to_bf16<R>(v);
  } else if constexpr (T == DType::f16) {
    return f32_to_f16<R>(v);
  } else if constexpr (T == DType::f8_e4m3) {
    return f32_to_f8_e4m3<R>(v);
  } else {
    return f32_to_f8_e5m2<R>(v);
  }
}

template <DType T>
inline f32v load_f32(const Element<T>* p) {
  Storage<T> v;
  std::memcpy(&v, p, sizeof v);
  return widen<T>(v);
}

// The first n < kLanes elements; the rest are zero.
template <DType T>
inline f32v load_f32_partial(const Element<T>* p, std::int64_t n) {
  Storage<T> v = {};
  std::memcpy(&v, p, to_size(n) * sizeof(Element<T>));
  return widen<T>(v);
}

template <DType T, Rounding R = Rounding::nearest>
inline void store_f32(Element<T>* p, f32v x) {
  const Storage<T> v = narrow<T, R>(x);
  std::memcpy(p, &v, sizeof v);
}

template <DType T, Rounding R = Rounding::nearest>
inline void store_f32_partial(Element<T>* p, f32v x, std::int64_t n) {
  const Storage<T> v = narrow<T, R>(x);
  std::memcpy(p, &v, to_size(n) * sizeof(Element<T>));
}

}  // namespace ballast::simd::BALLAST_ISA

#endif  // BALLAST_ISA
