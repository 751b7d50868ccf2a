#pragma once

// Random words and stochastic rounding for vector kernels; core/random.h defines the numbers.

#include "core/random.h"
#include "core/simd_convert.h"

namespace ballast {

// Elements whose words are made at once.
inline constexpr std::int64_t kRandomPiece = 64;

}  // namespace ballast

#ifdef BALLAST_ISA

namespace ballast::simd::BALLAST_ISA {

// The words of elements [first, first + kRandomPiece); first is a multiple of kRandomPiece. Loops
// over plain arrays: the compiler finds the widening multiply of each instruction set.
inline void random_words(const RandomSource& source, std::uint64_t first, std::uint32_t* out) {
  constexpr int kBlocks = kRandomPiece / 4;
  std::uint32_t c0[kBlocks], c1[kBlocks], c2[kBlocks], c3[kBlocks];
  const auto high = static_cast<std::uint32_t>(first / 4 >> 32);
  for (int j = 0; j < kBlocks; ++j) {
    c0[j] = static_cast<std::uint32_t>(first / 4) + static_cast<std::uint32_t>(j);
    c1[j] = high;
    c2[j] = source.step;
    c3[j] = source.site;
  }
  std::uint32_t k0 = source.seed, k1 = source.stream;
  for (int round = 0; round < 10; ++round) {
    for (int j = 0; j < kBlocks; ++j) {
      const std::uint64_t p0 = std::uint64_t{0xD2511F53u} * c0[j];
      const std::uint64_t p1 = std::uint64_t{0xCD9E8D57u} * c2[j];
      c0[j] = static_cast<std::uint32_t>(p1 >> 32) ^ c1[j] ^ k0;
      c1[j] = static_cast<std::uint32_t>(p1);
      c2[j] = static_cast<std::uint32_t>(p0 >> 32) ^ c3[j] ^ k1;
      c3[j] = static_cast<std::uint32_t>(p0);
    }
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  for (int j = 0; j < kBlocks; ++j) {
    out[4 * j] = c0[j];
    out[4 * j + 1] = c1[j];
    out[4 * j + 2] = c2[j];
    out[4 * j + 3] = c3[j];
  }
}

template <DType T>
struct StochasticFormat;
template <>
struct StochasticFormat<DType::bf16> {
  static constexpr int kDropped = 16;  // bits of an f32 that a normal result lacks
  static constexpr std::uint32_t kRebias = 0, kFirstNormal = 0;  // bf16 subnormals drop 16 bits too
  static constexpr std::uint32_t kLargest = 0x7f7f, kInfinity = 0x7f80, kNan = 0x7fc0;
  static constexpr float kSteps = 1.0f;
};
template <>
struct StochasticFormat<DType::f16> {
  static constexpr int kDropped = 13;
  static constexpr std::uint32_t kRebias = 0x38000000, kFirstNormal = 0x38800000;
  static constexpr std::uint32_t kLargest = 0x7bff, kInfinity = 0x7c00, kNan = 0x7e00;
  static constexpr float kSteps = 0x1p24f;  // 1 / the smallest subnormal
};
template <>
struct StochasticFormat<DType::f8_e4m3> {
  static constexpr int kDropped = 20;
  static constexpr std::uint32_t kRebias = 0x3c000000, kFirstNormal = 0x3c800000;
  static constexpr std::uint32_t kLargest = 0x7e, kInfinity = 0x7f, kNan = 0x7f;
  static constexpr float kSteps = 0x1p9f;
};
template <>
struct StochasticFormat<DType::f8_e5m2> {
  static constexpr int kDropped = 21;
  static constexpr std::uint32_t kRebias = 0x38000000, kFirstNormal = 0x38800000;
  static constexpr std::uint32_t kLargest = 0x7b, kInfinity = 0x7c, kNan = 0x7f;
  static constexpr float kSteps = 0x1p16f;
};

// Rounds |x| up with the probability that keeps the mean: the upper bits of the word are added to
// the bits that are dropped (24 of them to the fraction of a subnormal), then truncated. Exact
// values never move; a finite x stays finite; infinity and NaN as when rounding to nearest.
template <DType T>
inline Storage<T> narrow_stochastic(f32v x, u32v words) {
  using F = StochasticFormat<T>;
  const u32v a = bits(x) & 0x7fffffffu;
  u32v code = (a - F::kRebias + (words >> (32 - F::kDropped))) >> F::kDropped;
  if constexpr (F::kFirstNormal != 0) {
    const f32v steps = from_bits(a < F::kFirstNormal ? a : u32v{}) * F::kSteps;
    const i32v whole = __builtin_convertvector(steps, i32v);
    const f32v fraction = steps - __builtin_convertvector(whole, f32v);
    const i32v fraction24 = __builtin_convertvector(fraction * 0x1p24f, i32v);
    const u32v up = (reinterpret_cast<u32v>(fraction24) + (words >> 8)) >> 24;
    code = a < F::kFirstNormal ? reinterpret_cast<u32v>(whole) + up : code;
  }
  code = code > F::kLargest ? u32v{} + F::kLargest : code;
  code = a == 0x7f800000u ? u32v{} + F::kInfinity : code;
  code = a > 0x7f800000u ? u32v{} + F::kNan : code;
  u32v sign = (bits(x) >> 31) << (size_of(T) * 8 - 1);
  if constexpr (T == DType::bf16) sign = a > 0x7f800000u ? u32v{} : sign;
  if constexpr (size_of(T) == 1) {
    return low_bytes(code | sign);
  } else {
    return __builtin_convertvector(code | sign, Storage<T>);
  }
}

}  // namespace ballast::simd::BALLAST_ISA

#endif  // BALLAST_ISA
