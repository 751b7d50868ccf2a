#pragma once

// Random numbers that depend on nothing but their place: element i of a tensor at a step of a run.
// Thread counts, chunks and the order of work do not change them, and a resumed run repeats them.
//
// Philox4x32-10 with key (seed, stream) and counter (block low, block high, step, site); element i
// has word i % 4 of block i / 4.

#include <array>
#include <cstdint>
#include <string_view>

namespace ballast {

using PhiloxWords = std::array<std::uint32_t, 4>;

constexpr PhiloxWords philox(PhiloxWords counter, std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t{0xD2511F53u} * counter[0];
    const std::uint64_t p1 = std::uint64_t{0xCD9E8D57u} * counter[2];
    counter = {
        static_cast<std::uint32_t>(p1 >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(p1),
        static_cast<std::uint32_t>(p0 >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(p0)};
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return counter;
}

// FNV-1a, 64 bits: the same on every machine and in every version, which std::hash does not
// promise.
constexpr std::uint64_t hash_of(std::string_view name) {
  std::uint64_t h = 0xcbf29ce484222325u;
  for (const char c : name) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return h;
}

constexpr std::uint32_t fold(std::uint64_t x) {  // small numbers stay as they are
  return static_cast<std::uint32_t>(x ^ (x >> 32));
}

// One sequence of random words.
struct RandomSource {
  std::uint32_t seed = 0;    // of the run: fold(seed)
  std::uint32_t stream = 0;  // what the numbers are for: fold(hash_of("dropout"))
  std::uint32_t step = 0;
  std::uint32_t site = 0;  // which tensor: fold(hash_of("blocks.3.ffn"))

  constexpr PhiloxWords block(std::uint64_t b) const {
    return philox({static_cast<std::uint32_t>(b), static_cast<std::uint32_t>(b >> 32), step, site},
                  {seed, stream});
  }
  constexpr std::uint32_t word(std::uint64_t element) const {
    return block(element / 4)[element % 4];
  }
  // Where 16 bits are enough, two elements share a word: the upper half of the result is this
  // one's.
  constexpr std::uint32_t half(std::uint64_t element) const {
    return word(element / 2) << (element % 2 * 16);
  }
};

constexpr RandomSource random_source(std::uint64_t seed, std::string_view stream, std::int64_t step,
                                     std::string_view site) {
  return {.seed = fold(seed),
          .stream = fold(hash_of(stream)),
          .step = static_cast<std::uint32_t>(step),
          .site = fold(hash_of(site))};
}

// In [0, 1): the upper 24 bits of the word.
constexpr float uniform(std::uint32_t word) { return static_cast<float>(word >> 8) * 0x1p-24f; }

// Standard normal, by Box-Muller in double from words 2k, 2k + 1 of the pair the element stands in:
// r = sqrt(-2 ln((w0 + 1) 2^-32)), angle = 2 pi w1 2^-32; r cos(angle) for even elements, r
// sin(angle) for odd ones. |result| <= 6.66.
float normal(const RandomSource& source, std::uint64_t element);

// Elements [first, first + n) of the sequence.
void fill_uniform(const RandomSource& source, std::uint64_t first, float* out, std::int64_t n);
void fill_normal(const RandomSource& source, std::uint64_t first, float* out, std::int64_t n);

}  // namespace ballast
