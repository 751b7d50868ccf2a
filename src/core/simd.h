#pragma once

// One vector source for all instruction sets. A kernel source is compiled once per instruction set
// (CMake's ballast_simd_sources) with BALLAST_ISA naming the namespace its functions live in; the
// caller picks one at run time with BALLAST_ISA_CALL. Kernel sources hold loops only: no checks, no
// standard containers, so that no shared inline function is compiled for a newer machine than ours.
//
// Vectors are the compiler's own (arithmetic, comparison, mask ? a : b). Row tails go through
// load_partial / store_partial and the same vector code: an element's bits must not depend on where
// in a vector it happened to sit.

#include <cstdint>
#include <cstring>

#include "core/to_size.h"

#if defined(__x86_64__)
#define BALLAST_PER_ISA(declaration) \
  namespace sse2 {                   \
  declaration;                       \
  }                                  \
  namespace avx2 {                   \
  declaration;                       \
  }                                  \
  namespace avx512 {                 \
  declaration;                       \
  }
#define BALLAST_ISA_CALL(scope, function, ...)                                       \
  (::ballast::isa() == ::ballast::Isa::avx512 ? scope::avx512::function(__VA_ARGS__) \
   : ::ballast::isa() == ::ballast::Isa::avx2 ? scope::avx2::function(__VA_ARGS__)   \
                                              : scope::sse2::function(__VA_ARGS__))
#else
#define BALLAST_PER_ISA(declaration) \
  namespace neon {                   \
  declaration;                       \
  }
#define BALLAST_ISA_CALL(scope, function, ...) scope::neon::function(__VA_ARGS__)
#endif

namespace ballast {

enum class Isa : std::uint8_t { neon, sse2, avx2, avx512 };
Isa isa();  // the widest this machine has; BALLAST_MAX_ISA=sse2|avx2 in the environment lowers it
const char* name_of(Isa i);

}  // namespace ballast

#ifdef BALLAST_ISA

namespace ballast::simd::BALLAST_ISA {

#if defined(__AVX512F__)
inline constexpr int kLanes = 16, kRegisters = 32;
#elif defined(__AVX2__)
inline constexpr int kLanes = 8, kRegisters = 16;
#elif defined(__aarch64__)
inline constexpr int kLanes = 4, kRegisters = 32;
#else
inline constexpr int kLanes = 4, kRegisters = 16;
#endif

using f32v = float __attribute__((vector_size(kLanes * 4)));
using i32v = std::int32_t __attribute__((vector_size(kLanes * 4)));
using u32v = std::uint32_t __attribute__((vector_size(kLanes * 4)));
using u16v = std::uint16_t __attribute__((vector_size(kLanes * 2)));
using u8v = std::uint8_t __attribute__((vector_size(kLanes)));

// Through a type of any alignment that may alias all others: a memcpy here makes g++ 12 pass
// vectors through integer registers and the stack.
template <class V>
struct Unaligned {
  using type __attribute__((aligned(1), may_alias)) = V;
};
template <class V, class T>
inline V load_as(const T* p) {
  return *reinterpret_cast<const typename Unaligned<V>::type*>(p);
}
inline f32v load(const float* p) { return load_as<f32v>(p); }
inline void store(float* p, f32v v) { *reinterpret_cast<Unaligned<f32v>::type*>(p) = v; }

// The first n < kLanes elements; the rest are zero.
inline f32v load_partial(const float* p, std::int64_t n) {
  f32v v = {};
  std::memcpy(&v, p, to_size(n) * 4);
  return v;
}
inline void store_partial(float* p, f32v v, std::int64_t n) { std::memcpy(p, &v, to_size(n) * 4); }

inline f32v splat(float x) { return f32v{} + x; }
inline u32v bits(f32v v) { return reinterpret_cast<u32v>(v); }
inline f32v from_bits(u32v v) { return reinterpret_cast<f32v>(v); }
inline f32v max(f32v a, f32v b) { return a > b ? a : b; }
inline f32v min(f32v a, f32v b) { return a < b ? a : b; }

// Sums of the lanes, always by halves: lane i + lane i + n/2.
inline float reduce_add(f32v v) {
  float lane[kLanes];
  std::memcpy(lane, &v, sizeof v);
  for (int n = kLanes / 2; n > 0; n /= 2) {
    for (int i = 0; i < n; ++i) lane[i] += lane[i + n];
  }
  return lane[0];
}
inline float reduce_max(f32v v) {
  float lane[kLanes];
  std::memcpy(lane, &v, sizeof v);
  for (int n = kLanes / 2; n > 0; n /= 2) {
    for (int i = 0; i < n; ++i) lane[i] = lane[i] > lane[i + n] ? lane[i] : lane[i + n];
  }
  return lane[0];
}

// Lanes widened and cut. With four lanes the compiler takes __builtin_convertvector apart lane by
// lane; interleaving with zeros is one instruction per doubling.
#if defined(__AVX2__)
inline u32v zero_extend(u16v v) { return __builtin_convertvector(v, u32v); }
inline u32v zero_extend(u8v v) { return __builtin_convertvector(v, u32v); }
inline u8v low_bytes(u32v v) { return __builtin_convertvector(v, u8v); }
#else
inline u32v zero_extend(u16v v) {
  return reinterpret_cast<u32v>(__builtin_shufflevector(v, u16v{}, 0, 4, 1, 5, 2, 6, 3, 7));
}
inline u32v zero_extend(u8v v) {
  using Bytes = std::uint8_t __attribute__((vector_size(16)));
  const auto w = reinterpret_cast<Bytes>(u32v{reinterpret_cast<std::uint32_t>(v), 0, 0, 0});
  const Bytes twice =
      __builtin_shufflevector(w, Bytes{}, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  return reinterpret_cast<u32v>(__builtin_shufflevector(twice, Bytes{}, 0, 1, 16, 17, 2, 3, 18, 19,
                                                        4, 5, 20, 21, 6, 7, 22, 23));
}
inline u8v low_bytes(u32v v) {
  using Bytes = std::uint8_t __attribute__((vector_size(8)));
  const u16v half = __builtin_convertvector(v, u16v);
  const Bytes b =
      __builtin_convertvector(__builtin_shufflevector(half, half, 0, 1, 2, 3, 4, 5, 6, 7), Bytes);
  u8v low;
  std::memcpy(&low, &b, sizeof low);
  return low;
}
#endif

inline f32v bf16_to_f32(u16v v) { return from_bits(zero_extend(v) << 16); }

// e^x within 2 units in the last place: x = n ln2 + r, |r| <= ln2/2, a degree-7 polynomial for e^r.
// Below -87.33 the result is 0 (no subnormals), from 88.722839 up infinity; NaN stays NaN.
inline f32v exp(f32v x) {
  const f32v shifted = x * 1.44269504088896341f + 12582912.0f;  // 1.5 * 2^23 rounds to an integer
  const f32v n = shifted - 12582912.0f;
  f32v r = x - n * 0.693359375f;
  r = r - n * -2.12194440e-4f;
  f32v p = splat(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  // 2^n straight into the exponent: as a factor, 2^128 would be infinite before the result is.
  f32v y = from_bits(bits(p) + (bits(shifted) << 23));
  y = x < -87.33654f ? splat(0.0f) : y;
  y = x >= 88.722839f ? splat(__builtin_inff()) : y;
  return x == x ? y : x;
}

// tanh(x) = sign(x) (1 - 2 / (e^{2|x|} + 1)); near zero the odd polynomial, which keeps relative
// accuracy.
inline f32v tanh(f32v x) {
  const f32v a = from_bits(bits(x) & 0x7fffffffu);
  const f32v e = exp(min(a, splat(20.0f)) * 2.0f);
  const f32v far = 1.0f - 2.0f / (e + 1.0f);
  const f32v s = a * a;
  f32v q = splat(-5.70498872745e-3f);
  q = q * s + 2.06390887954e-2f;
  q = q * s - 5.37397155531e-2f;
  q = q * s + 1.33314422036e-1f;
  q = q * s - 3.33332819422e-1f;
  const f32v near = q * s * a + a;
  const f32v y = a < 0.625f ? near : far;
  const f32v with_sign = from_bits(bits(y) | (bits(x) & 0x80000000u));
  return x == x ? with_sign : x;
}

}  // namespace ballast::simd::BALLAST_ISA

#endif  // BALLAST_ISA
