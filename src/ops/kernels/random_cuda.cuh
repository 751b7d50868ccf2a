#pragma once

// The random numbers of core/random.h for kernels: the same words, bit by bit. Included by .cu
// files only.

#include "ops/kernels/cuda_kernel.cuh"
#include "ops/kernels/random_cuda.h"

namespace ballast::ops::cuda {

// The keys of the ten rounds. Among a kernel's arguments they cost its threads nothing.
struct RoundKeys {
  std::uint32_t first[10], second[10];
};
__host__ __device__ __forceinline__ RoundKeys round_keys(const RandomKey& key) {
  RoundKeys keys = {};
  std::uint32_t k0 = key.seed, k1 = key.stream;
  for (int round = 0; round < 10; ++round) {
    keys.first[round] = k0;
    keys.second[round] = k1;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return keys;
}

// The four words of elements 4 block ... 4 block + 3. Of the key's parts step and site are used.
__device__ __forceinline__ uint4 random_block(const RoundKeys& keys, const RandomKey& key,
                                              std::uint64_t block) {
  uint4 c = make_uint4(static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32),
                       key.step, key.site);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const std::uint32_t high0 = __umulhi(0xD2511F53u, c.x), low0 = 0xD2511F53u * c.x;
    const std::uint32_t high1 = __umulhi(0xCD9E8D57u, c.z), low1 = 0xCD9E8D57u * c.z;
    c = make_uint4(high1 ^ c.y ^ keys.first[round], low1, high0 ^ c.w ^ keys.second[round], low0);
  }
  return c;
}
__device__ __forceinline__ uint4 random_block(const RandomKey& key, std::uint64_t block) {
  return random_block(round_keys(key), key, block);
}

__device__ __forceinline__ std::uint32_t random_word(const RandomKey& key, std::uint64_t element) {
  const uint4 w = random_block(key, element / 4);
  const auto k = static_cast<std::uint32_t>(element % 4);
  return k < 2 ? (k == 0 ? w.x : w.y) : (k == 2 ? w.z : w.w);
}

// The words of elements [first, first + 8), first being a multiple of four.
__device__ __forceinline__ void aligned_words(const RoundKeys& keys, const RandomKey& key,
                                              std::uint64_t first, std::uint32_t (&words)[8]) {
  const uint4 a = random_block(keys, key, first / 4), b = random_block(keys, key, first / 4 + 1);
  words[0] = a.x, words[1] = a.y, words[2] = a.z, words[3] = a.w;
  words[4] = b.x, words[5] = b.y, words[6] = b.z, words[7] = b.w;
}
__device__ __forceinline__ void aligned_words(const RandomKey& key, std::uint64_t first,
                                              std::uint32_t (&words)[8]) {
  aligned_words(round_keys(key), key, first, words);
}
// ... any first.
__device__ __forceinline__ void random_words(const RandomKey& key, std::uint64_t first,
                                             std::uint32_t (&words)[8]) {
  if (first % 4 == 0) {
    aligned_words(key, first, words);
  } else {
#pragma unroll
    for (int k = 0; k < 8; ++k) words[k] = random_word(key, first + k);
  }
}

// RandomSource::half of elements [first, first + 8), first being a multiple of eight: two in a
// word, the even one's is the upper.
__device__ __forceinline__ uint4 aligned_halves(const RoundKeys& keys, const RandomKey& key,
                                                std::uint64_t first) {
  return random_block(keys, key, first / 8);
}
__device__ __forceinline__ void spread(const uint4& halves, std::uint32_t (&each)[8]) {
  const std::uint32_t two[4] = {halves.x, halves.y, halves.z, halves.w};
#pragma unroll
  for (int k = 0; k < 8; ++k) each[k] = k % 2 == 0 ? two[k / 2] : two[k / 2] << 16;
}
// ... of one.
__device__ __forceinline__ std::uint32_t random_half(const RandomKey& key, std::uint64_t element) {
  return random_word(key, element / 2) << (element % 2 * 16);
}

// As core/simd_random.h rounds to bf16: the upper half of the word is added to what is dropped.
__device__ __forceinline__ std::uint16_t stochastic_bf16(float x, std::uint32_t word) {
  const std::uint32_t u = __float_as_uint(x), a = u & 0x7fffffffu;
  if (a > 0x7f800000u) return 0x7fc0u;
  std::uint32_t code = (a + (word >> 16)) >> 16;
  if (code > 0x7f7fu) code = 0x7f7fu;  // finite numbers stay finite
  if (a == 0x7f800000u) code = 0x7f80u;
  return static_cast<std::uint16_t>(code | (u >> 31 << 15));
}
__device__ __forceinline__ void store_code(bf16* p, std::uint16_t code) {
  *reinterpret_cast<std::uint16_t*>(p) = code;
}

// Eight numbers below 2^127, rounded like that and stored at once: the sum does not reach the sign.
__device__ __forceinline__ void store_stochastic(bf16* p, const float (&x)[8],
                                                 const std::uint32_t (&words)[8]) {
  std::uint32_t pair[4];
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const std::uint32_t low = __float_as_uint(x[2 * k]) + (words[2 * k] >> 16);
    const std::uint32_t high = __float_as_uint(x[2 * k + 1]) + (words[2 * k + 1] >> 16);
    pair[k] = low >> 16 | (high & 0xffff0000u);
  }
  *reinterpret_cast<uint4*>(p) = make_uint4(pair[0], pair[1], pair[2], pair[3]);
}
// ... with halves of words.
__device__ __forceinline__ void store_stochastic(bf16* p, const float (&x)[8],
                                                 const uint4& halves) {
  std::uint32_t words[8];
  spread(halves, words);
  store_stochastic(p, x, words);
}

}  // namespace ballast::ops::cuda
