#include "core/random.h"

#include <cmath>
#include <numbers>

namespace ballast {
namespace {

// Calls f(element, words of its block) for each element, each block computed once.
template <class F>
void each(const RandomSource& source, std::uint64_t first, std::int64_t n, F&& f) {
  PhiloxWords words{};
  for (std::uint64_t i = first; i < first + static_cast<std::uint64_t>(n); ++i) {
    if (i == first || i % 4 == 0) words = source.block(i / 4);
    f(i, words);
  }
}

struct NormalPair {
  float even, odd;
};
NormalPair normal_pair(std::uint32_t word0, std::uint32_t word1) {
  const double u = (static_cast<double>(word0) + 1.0) * 0x1p-32;
  const double angle = 2.0 * std::numbers::pi * (static_cast<double>(word1) * 0x1p-32);
  const double r = std::sqrt(-2.0 * std::log(u));
  return {static_cast<float>(r * std::cos(angle)), static_cast<float>(r * std::sin(angle))};
}

}  // namespace

float normal(const RandomSource& source, std::uint64_t element) {
  const PhiloxWords words = source.block(element / 4);
  const std::size_t pair = element % 4 / 2 * 2;
  const NormalPair p = normal_pair(words[pair], words[pair + 1]);
  return element % 2 == 0 ? p.even : p.odd;
}

void fill_uniform(const RandomSource& source, std::uint64_t first, float* out, std::int64_t n) {
  each(source, first, n,
       [&](std::uint64_t i, const PhiloxWords& words) { out[i - first] = uniform(words[i % 4]); });
}

void fill_normal(const RandomSource& source, std::uint64_t first, float* out, std::int64_t n) {
  NormalPair pair{};
  each(source, first, n, [&](std::uint64_t i, const PhiloxWords& words) {
    if (i == first || i % 2 == 0) pair = normal_pair(words[i % 4 & ~1u], words[i % 4 | 1u]);
    out[i - first] = i % 2 == 0 ? pair.even : pair.odd;
  });
}

}  // namespace ballast
