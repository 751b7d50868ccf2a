#include "ops/noise.h"

#include <gtest/gtest.h>

#include <cstring>

#include "core/to_size.h"
#include "tests/ref/noise.h"
#include "tests/support/recorded_program.h"
#include "tests/support/test_device.h"

namespace ballast::ops::noise_test {
namespace {

using support::RecordedProgram;
using support::SampleTensor;

constexpr RandomSource kSource = random_source(7, "noise", 3, "latent");

TEST(NoiseRef, HasMeanZeroVarianceOneAndNormalTails) {
  const std::vector<double> z = ref::noise(kSource, 0, 200000);
  double mean = 0, square = 0, within = 0;
  for (const double x : z) {
    mean += x / 2e5;
    square += x * x / 2e5;
    within += (std::abs(x) < 1) / 2e5;
  }
  // Four standard deviations of each of the three estimates.
  EXPECT_NEAR(mean, 0, 4 / std::sqrt(2e5));
  EXPECT_NEAR(square, 1, 4 * std::sqrt(2 / 2e5));
  EXPECT_NEAR(within, 0.6826894921, 4 * std::sqrt(0.683 * 0.317 / 2e5));
}

TEST(Noise, IsTheNumbersOfItsDefinitionBitByBit) {
  for (const std::int64_t n : {0, 1, 2, 3, 5, 4096, 100003}) {
    for (const std::uint64_t first : {0u, 1u, 6u, 4099u}) {
      ThreadPool pool(2);
      SampleTensor to(DType::f32, {n}, {.start = 3});
      noise({.to = to.view(), .source = kSource, .first = first}, support::test_stream(pool));
      std::vector<float> filled(to_size(n));
      fill_normal(kSource, first, filled.data(), n);
      const std::vector<double> want = ref::noise(kSource, first, filled.size());
      for (std::int64_t i = 0; i < n; ++i) {
        const auto k = to_size(i);
        ASSERT_EQ(to[i], filled[k]) << i;
        ASSERT_EQ(to[i], static_cast<float>(want[k])) << i;
      }
      for (std::int64_t i = 0; i < std::min<std::int64_t>(n, 6); ++i) {
        EXPECT_EQ(to[i], normal(kSource, first + static_cast<std::uint64_t>(i)));
      }
      EXPECT_TRUE(to.padding_untouched());
    }
  }
}

TEST(NoiseBits, DependNeitherOnThreadsNorOnTheCut) {
  constexpr std::int64_t kCount = 20011;
  ThreadPool one(1);
  SampleTensor whole(DType::f32, {kCount});
  noise({.to = whole.view(), .source = kSource}, support::test_stream(one));
  for (const int threads : {2, 3}) {
    ThreadPool pool(threads);
    SampleTensor parts(DType::f32, {kCount});
    for (std::int64_t i = 0; i < kCount; i += 7001) {
      noise({.to = parts.view().rows(i, std::min<std::int64_t>(7001, kCount - i)),
             .source = kSource,
             .first = static_cast<std::uint64_t>(i)},
            support::test_stream(pool));
    }
    EXPECT_TRUE(parts.bytes() == whole.bytes());
  }
}

TEST(NoiseChecks, RefuseOtherTypes) {
  ThreadPool pool(1);
  SampleTensor to(DType::bf16, {4});
  EXPECT_THROW(noise({.to = to.view(), .source = kSource}, support::test_stream(pool)), Error);
}

// Samples of one optimizer step, as one program of four or as programs of one and two.
std::vector<std::vector<double>> noise_of_step(std::int64_t step, std::int64_t first,
                                               std::int64_t count) {
  RecordedProgram p;
  std::vector<Buffer> to;
  for (std::int64_t i = 0; i < count; ++i) {
    to.push_back(p.pb.temp("noise", {2, 9}, DType::f32));
    noise(p.pb, to.back(), random_site("noise", "latent", i));
  }
  EXPECT_TRUE(p.instruction(0).reads.empty());
  EXPECT_EQ(p.instruction(0).writes, std::vector{to[0]});
  p.run({.step = step, .seed = 11, .first_sample = first});
  std::vector<std::vector<double>> values;
  for (const Buffer b : to) values.push_back(p.value(b).values());
  return values;
}

TEST(NoiseRecorded, BelongsToTheSampleHoweverAStepIsSplit) {
  const auto all = noise_of_step(5, 0, 4);
  const auto second = noise_of_step(5, 1, 1), rest = noise_of_step(5, 2, 2);
  EXPECT_EQ(second[0], all[1]);
  EXPECT_EQ(rest[0], all[2]);
  EXPECT_EQ(rest[1], all[3]);
  EXPECT_NE(all[0], all[1]);
  EXPECT_NE(noise_of_step(6, 0, 1)[0], all[0]);
}

TEST(NoiseRecorded, OfTheFirstSampleIsTheNamedSource) {
  const std::vector<double> got = noise_of_step(3, 0, 1)[0];
  const RandomSource source = random_source(11, "noise", 3, "latent");
  for (std::size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i], normal(source, i));
}

}  // namespace
}  // namespace ballast::ops::noise_test
