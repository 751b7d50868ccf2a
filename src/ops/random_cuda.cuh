#pragma once

// The random numbers of core/random.h for kernels: the same words, bit by bit. Included by .cu
// files only.

#include "ops/cuda_kernel.cuh"
#include "ops/random_cuda.h"

namespace ballast::ops::cuda {

// The four words of elements 4 block ... 4 block + 3.
__device__ __forceinline__ uint4 random_block(const RandomKey& key, std::uint64_t block) {
  uint4 c = make_uint4(static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32),
                       key.step, key.site);
  std::uint32_t k0 = key.seed, k1 = key.stream;
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const std::uint32_t high0 = __umulhi(0xD2511F53u, c.x), low0 = 0xD2511F53u * c.x;
    const std::uint32_t high1 = __umulhi(0xCD9E8D57u, c.z), low1 = 0xCD9E8D57u * c.z;
    c = make_uint4(high1 ^ c.y ^ k0, low1, high0 ^ c.w ^ k1, low0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c;
}

__device__ __forceinline__ std::uint32_t random_word(const RandomKey& key, std::uint64_t element) {
  const uint4 w = random_block(key, element / 4);
  const auto k = static_cast<std::uint32_t>(element % 4);
  return k < 2 ? (k == 0 ? w.x : w.y) : (k == 2 ? w.z : w.w);
}

// The words of elements [first, first + 8).
__device__ __forceinline__ void random_words(const RandomKey& key, std::uint64_t first,
                                             std::uint32_t (&words)[8]) {
  if (first % 4 == 0) {
    const uint4 a = random_block(key, first / 4), b = random_block(key, first / 4 + 1);
    words[0] = a.x, words[1] = a.y, words[2] = a.z, words[3] = a.w;
    words[4] = b.x, words[5] = b.y, words[6] = b.z, words[7] = b.w;
  } else {
#pragma unroll
    for (int k = 0; k < 8; ++k) words[k] = random_word(key, first + k);
  }
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

}  // namespace ballast::ops::cuda
