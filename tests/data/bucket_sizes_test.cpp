#include "data/bucket_sizes.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "tests/support/errors.h"

namespace ballast::data {
namespace {

BucketRules seven_ratios(std::int64_t multiple) {
  return checked(
      {.ratios = geometric_ratios(0.5, 2, 7), .resolutions = {512}, .multiple = multiple});
}

std::vector<ClipSize> images_of(const BucketRules& rules, std::int64_t width, std::int64_t height) {
  return buckets_of(rules, {.width = width, .height = height});
}

TEST(BucketSizes, SevenRatiosAt512GiveTheWorkedTable) {
  const std::vector<double> ratios = {0.5, 0.63, 0.794, 1.0, 1.26, 1.587, 2.0};
  const std::vector<ClipSize> by_16 = {{368, 720, 1}, {400, 640, 1}, {464, 576, 1}, {512, 512, 1},
                                       {576, 464, 1}, {640, 400, 1}, {720, 368, 1}};
  const std::vector<ClipSize> by_32 = {{352, 736, 1}, {416, 640, 1}, {448, 576, 1}, {512, 512, 1},
                                       {576, 448, 1}, {640, 416, 1}, {736, 352, 1}};
  EXPECT_EQ(seven_ratios(16).ratios, ratios);
  EXPECT_EQ(all_buckets(seven_ratios(16)), by_16);
  EXPECT_EQ(all_buckets(seven_ratios(32)), by_32);
  for (std::size_t i = 0; i < ratios.size(); ++i) {
    const auto width = static_cast<std::int64_t>(std::lround(1000 * ratios[i]));
    EXPECT_EQ(images_of(seven_ratios(16), width, 1000), std::vector{by_16[i]}) << ratios[i];
    EXPECT_EQ(images_of(seven_ratios(32), width, 1000), std::vector{by_32[i]}) << ratios[i];
  }
}

TEST(BucketSizes, PairsMeanSideAndRatio) {
  const BucketRules hd =
      checked({.ratios = {1280.0 / 720}, .resolutions = {std::sqrt(1280.0 * 720)}});
  EXPECT_EQ(hd.resolutions, std::vector{960.0});
  EXPECT_EQ(hd.ratios, std::vector{1.778});
  EXPECT_EQ(all_buckets(hd), (std::vector<ClipSize>{{1280, 720, 1}}));
  BucketRules hd_32 = hd;
  hd_32.multiple = 32;
  EXPECT_EQ(all_buckets(checked(hd_32)), (std::vector<ClipSize>{{1280, 704, 1}}));

  const BucketRules sd =
      checked({.ratios = {832.0 / 480}, .resolutions = {std::sqrt(832.0 * 480)}});
  EXPECT_EQ(sd.resolutions, std::vector{631.949});
  EXPECT_EQ(sd.ratios, std::vector{1.733});
  EXPECT_EQ(all_buckets(sd), (std::vector<ClipSize>{{832, 480, 1}}));
}

TEST(BucketSizes, ClipsHaveOneFrameMoreThanAMultipleOfFour) {
  EXPECT_EQ(clip_length(1), 1);
  EXPECT_EQ(clip_length(4), 1);
  EXPECT_EQ(clip_length(24), 21);
  EXPECT_EQ(clip_length(33), 33);
  EXPECT_EQ(clip_length(80), 77);
  EXPECT_EQ(clip_length(81), 81);
}

TEST(BucketSizes, AVideoTooShortForEveryBucketIsDropped) {
  const BucketRules rules = checked({.resolutions = {512}, .frames = {33}});
  EXPECT_EQ(rules.frames, (std::vector<std::int64_t>{1, 33}));
  const auto video = [&](std::int64_t frames, double fps) {
    return buckets_of(rules, {.width = 640, .height = 640, .frames = frames, .fps = fps});
  };
  EXPECT_TRUE(video(15, 16).empty());
  EXPECT_TRUE(video(32, 16).empty());
  EXPECT_EQ(video(33, 16), (std::vector<ClipSize>{{512, 512, 33}}));
  EXPECT_TRUE(video(61, 30).empty()) << "61 frames at 30 are 32 at 16";
  EXPECT_EQ(video(62, 30), (std::vector<ClipSize>{{512, 512, 33}}));
  EXPECT_EQ(video(1, 0), (std::vector<ClipSize>{{512, 512, 1}})) << "an image";
}

TEST(BucketSizes, EveryResolutionIsUsed) {
  const BucketRules rules = checked({.resolutions = {512, 256, 512.0001}, .frames = {1}});
  EXPECT_EQ(images_of(rules, 99, 100), (std::vector<ClipSize>{{256, 256, 1}, {512, 512, 1}}));
}

TEST(BucketSizes, RoundHalfToEven) {
  EXPECT_EQ(round_to_multiple(8, 16), 0);
  EXPECT_EQ(round_to_multiple(24, 16), 32);
  EXPECT_EQ(round_to_multiple(40, 16), 32);
  EXPECT_EQ(round_to_multiple(56, 16), 64);
  EXPECT_EQ(round_to_multiple(48, 32), 64);
  EXPECT_EQ(round_to_multiple(80, 32), 64);
}

TEST(BucketSizes, OfTwoRatiosEquallyNearTheSmallerWins) {
  const std::vector<double> ratios = {0.5, 2.0};
  EXPECT_EQ(nearest_ratio(ratios, 300, 300), 0.5);
}

TEST(BucketSizes, ListedSizesAreChosenByRatioAmongThoseTheClipFills) {
  const BucketRules rules =
      checked({.sizes = {{512, 512, 1}, {832, 480, 33}, {480, 832, 81}, {830, 470, 80}}});
  const auto video = [&](std::int64_t w, std::int64_t h, std::int64_t frames) {
    return buckets_of(rules, {.width = w, .height = h, .frames = frames, .fps = 16});
  };
  EXPECT_EQ(video(1920, 1080, 200), (std::vector<ClipSize>{{832, 464, 77}}))
      << "1.766 is nearer to 1.778 than 1.733 is; 830 x 470 x 80 is rounded";
  EXPECT_EQ(video(1920, 1080, 40), (std::vector<ClipSize>{{832, 480, 33}}));
  EXPECT_EQ(video(1080, 1920, 81), (std::vector<ClipSize>{{480, 832, 81}}));
  EXPECT_EQ(video(1080, 1920, 80), (std::vector<ClipSize>{{832, 480, 33}}))
      << "too short for the upright one; of the others 1.733 is nearer";
  EXPECT_TRUE(video(512, 512, 20).empty()) << "the bucket of one frame is for images";
  EXPECT_EQ(video(512, 512, 1), (std::vector<ClipSize>{{512, 512, 1}}));
}

TEST(BucketSizes, RefuseNumbersThatMakeNoBucket) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_FAILS(checked({.resolutions = {nan}}), ErrorCode::input, "resolution");
  EXPECT_FAILS(checked({.resolutions = {-512}}), ErrorCode::input, "resolution");
  EXPECT_FAILS(checked({.resolutions = {4}}), ErrorCode::input, "0 x 0");
  EXPECT_FAILS(checked({.ratios = {0}, .resolutions = {512}}), ErrorCode::input, "aspect ratio");
  EXPECT_FAILS(checked({.resolutions = {512}, .frames = {0}}), ErrorCode::input, "frame bucket");
  EXPECT_FAILS(checked({.sizes = {{512, -1, 1}}}), ErrorCode::input, "height");
  EXPECT_FAILS(geometric_ratios(0.5, 2, 1'000'000'000), ErrorCode::input, "num_ar_buckets");
  EXPECT_FAILS(geometric_ratios(0.5, nan, 3), ErrorCode::input, "max_ar");
}

// Written the long way: all candidates with their distances, sorted.
ClipSize brute_force(const BucketRules& rules, double resolution, const MediaSize& media) {
  std::vector<std::pair<double, double>> by_distance;
  for (const double r : rules.ratios) {
    by_distance.emplace_back(
        std::abs(std::log(static_cast<double>(media.width) / static_cast<double>(media.height)) -
                 std::log(r)),
        r);
  }
  std::sort(by_distance.begin(), by_distance.end());
  const double ratio = by_distance.front().second;
  const auto frames = static_cast<std::int64_t>(
      media.frames == 1 ? 1.0 : static_cast<double>(media.frames) * rules.fps / media.fps);
  std::int64_t bucket = 0;
  for (const std::int64_t f : rules.frames) {
    if (f <= frames) bucket = std::max(bucket, f);
  }
  if (bucket == 0 || (frames > 1 && bucket == 1)) return {};
  const auto nearest = [&](double x) {  // among all multiples, by distance, then even
    std::int64_t best = 0;
    for (std::int64_t k = 1; k < 400; ++k) {
      const double a = std::abs(x - static_cast<double>(k * rules.multiple));
      const double b = std::abs(x - static_cast<double>(best * rules.multiple));
      if (a < b || (a == b && k % 2 == 0)) best = k;
    }
    return best * rules.multiple;
  };
  const double width = std::sqrt(resolution * resolution * ratio);
  std::int64_t length = bucket;
  while (length % 4 != 1) --length;
  return {nearest(width), nearest(resolution * resolution / width), length};
}

TEST(BucketSizes, AgreeWithBruteForceOnRandomMedia) {
  std::mt19937 random(7);
  const auto below = [&](int n) { return static_cast<std::int64_t>(random() % unsigned(n)); };
  for (int trial = 0; trial < 300; ++trial) {
    BucketRules rules;
    rules.multiple = below(2) == 0 ? 16 : 32;
    rules.fps = below(2) == 0 ? 16 : 24;
    rules.ratios = geometric_ratios(0.3 + 0.1 * static_cast<double>(below(5)), 2.5, 1 + below(9));
    for (std::int64_t n = 1 + below(3); n > 0; --n) {
      rules.resolutions.push_back(static_cast<double>(128 + below(1000)));
    }
    rules.frames.clear();
    for (std::int64_t n = below(4); n > 0; --n) rules.frames.push_back(1 + below(100));
    rules = checked(rules);
    for (int item = 0; item < 20; ++item) {
      const MediaSize media{.width = 16 + below(4000),
                            .height = 16 + below(4000),
                            .frames = below(4) == 0 ? 1 : 2 + below(300),
                            .fps = 8 + static_cast<double>(below(60))};
      const std::vector<ClipSize> chosen = buckets_of(rules, media);
      const std::vector<ClipSize> all = all_buckets(rules);
      for (std::size_t i = 0; i < rules.resolutions.size(); ++i) {
        const ClipSize expected = brute_force(rules, rules.resolutions[i], media);
        if (expected.frames == 0) {
          EXPECT_TRUE(chosen.empty());
        } else {
          ASSERT_EQ(chosen.size(), rules.resolutions.size());
          EXPECT_EQ(chosen[i], expected) << media.width << " x " << media.height << " x "
                                         << media.frames << " at " << media.fps;
          EXPECT_TRUE(std::binary_search(all.begin(), all.end(), chosen[i]));
        }
      }
    }
  }
}

}  // namespace
}  // namespace ballast::data
