#include "core/random.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "core/to_size.h"

namespace ballast {
namespace {

TEST(Philox, GivesThePublishedWords) {
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}),
            (PhiloxWords{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  const std::uint32_t f = 0xffffffffu;
  EXPECT_EQ(philox({f, f, f, f}, {f, f}),
            (PhiloxWords{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
}

TEST(NameHash, IsFnv1a) {
  static_assert(hash_of("") == 0xcbf29ce484222325u);
  static_assert(hash_of("a") == 0xaf63dc4c8601ec8cu);
  static_assert(hash_of("foobar") == 0x85944171f73967e8u);
  EXPECT_EQ(fold(42), 42u);
  EXPECT_NE(fold(1ull << 32), fold(0));
}

TEST(RandomSource, KeyAndCounterStandWhereTheContractSays) {
  const RandomSource s = {.seed = 1, .stream = 2, .step = 3, .site = 4};
  const std::uint64_t block = (5ull << 32) + 6;
  EXPECT_EQ(s.block(block), philox({6, 5, 3, 4}, {1, 2}));
  EXPECT_EQ(s.word(4 * block + 3), philox({6, 5, 3, 4}, {1, 2})[3]);
}

TEST(RandomSource, EverySeedStreamStepAndSiteHasItsOwnWords) {
  const RandomSource s = random_source(7, "dropout", 3, "blocks.0.ffn");
  EXPECT_NE(s.word(0), random_source(8, "dropout", 3, "blocks.0.ffn").word(0));
  EXPECT_NE(s.word(0), random_source(7, "noise", 3, "blocks.0.ffn").word(0));
  EXPECT_NE(s.word(0), random_source(7, "dropout", 4, "blocks.0.ffn").word(0));
  EXPECT_NE(s.word(0), random_source(7, "dropout", 3, "blocks.1.ffn").word(0));
}

TEST(RandomFill, DoesNotDependOnTheChunks) {
  const RandomSource s = random_source(11, "noise", 1, "x");
  const std::uint64_t first = (1ull << 34) - 50;  // the block number passes 2^32
  std::vector<float> normal_whole(331), uniform_whole(331), piece(331);
  fill_normal(s, first, normal_whole.data(), 331);
  fill_uniform(s, first, uniform_whole.data(), 331);
  for (std::int64_t at = 0, n = 0; at < 331; at += n, ++n) {
    const std::int64_t count = std::min<std::int64_t>(n, 331 - at);
    const auto bytes = to_size(count) * 4;
    fill_normal(s, first + static_cast<std::uint64_t>(at), piece.data(), count);
    EXPECT_EQ(std::memcmp(piece.data(), normal_whole.data() + at, bytes), 0);
    fill_uniform(s, first + static_cast<std::uint64_t>(at), piece.data(), count);
    EXPECT_EQ(std::memcmp(piece.data(), uniform_whole.data() + at, bytes), 0);
  }
  for (std::uint64_t i = 0; i < 331; ++i) {
    EXPECT_EQ(normal(s, first + i), normal_whole[i]);
    EXPECT_EQ(uniform(s.word(first + i)), uniform_whole[i]);
  }
}

TEST(Uniform, CoversZeroToJustBelowOne) {
  EXPECT_EQ(uniform(0), 0.0f);
  EXPECT_EQ(uniform(0xffu), 0.0f);
  EXPECT_EQ(uniform(0xffffffffu), 1.0f - 0x1p-24f);
}

// Largest distance between the empirical and the true distribution; for n values it exceeds
// 1.95 / sqrt(n) once in a thousand honest samples, and the sample is fixed.
template <class Cdf>
double kolmogorov(std::vector<float> x, Cdf cdf) {
  std::sort(x.begin(), x.end());
  double worst = 0;
  const auto n = static_cast<double>(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double p = cdf(static_cast<double>(x[i]));
    worst = std::max({worst, std::fabs(p - static_cast<double>(i) / n),
                      std::fabs(p - static_cast<double>(i + 1) / n)});
  }
  return worst;
}

TEST(RandomFill, HasTheDistributionsItNames) {
  const RandomSource s = random_source(1, "noise", 0, "latents");
  std::vector<float> x(200000);
  const double bound = 1.95 / std::sqrt(200000.0);
  fill_uniform(s, 0, x.data(), 200000);
  EXPECT_LT(kolmogorov(x, [](double v) { return v; }), bound);
  fill_normal(s, 0, x.data(), 200000);
  EXPECT_LT(kolmogorov(x, [](double v) { return 0.5 * std::erfc(-v / std::sqrt(2.0)); }), bound);
  double neighbours = 0;  // the two values of a pair must not be correlated
  for (std::size_t i = 0; i < x.size(); i += 2) {
    neighbours += static_cast<double>(x[i]) * static_cast<double>(x[i + 1]);
  }
  EXPECT_LT(std::fabs(neighbours / 1e5), 4 / std::sqrt(1e5));
}

}  // namespace
}  // namespace ballast
