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

// A bf16 without bias: between neighbours lo < |x| < hi the result is hi with probability (|x| -
// lo) / (hi - lo). The upper 16 bits of the word are added to the bits that are dropped, then those
// are cut off. Exact values never move; finite values stay finite (at most the largest); infinity
// and NaN are as when rounding to nearest.
inline Storage<DType::bf16> narrow_stochastic(f32v x, u32v words) {
  const u32v a = bits(x) & 0x7fffffffu;
  u32v code = (a + (words >> 16)) >> 16;
  code = code > 0x7f7fu ? u32v{} + 0x7f7fu : code;
  code = a == 0x7f800000u ? u32v{} + 0x7f80u : code;
  code = a > 0x7f800000u ? u32v{} + 0x7fc0u : code | (bits(x) >> 31) << 15;
  return __builtin_convertvector(code, Storage<DType::bf16>);
}

}  // namespace ballast::simd::BALLAST_ISA

#endif  // BALLAST_ISA
