#include "data/musubi_clips.h"

#include <gtest/gtest.h>

#include "tests/support/errors.h"

namespace ballast::data {
namespace {

PixelSize chosen(PixelSize resolution, PixelSize image, bool no_upscale = false) {
  return musubi_bucket_of(musubi_buckets(resolution, true), resolution, image, no_upscale);
}

TEST(MusubiBuckets, AreThoseOfTheWorkedExamples) {
  const auto wide = musubi_buckets({960, 544}, true);
  EXPECT_EQ(wide.size(), 47u);
  EXPECT_EQ(wide.front(), (PixelSize{352, 1472}));
  EXPECT_EQ(wide.back(), (PixelSize{1472, 352}));
  EXPECT_EQ(chosen({960, 544}, {1920, 1080}), (PixelSize{960, 544}));
  EXPECT_EQ(chosen({960, 544}, {1024, 1024}), (PixelSize{720, 720}));
  EXPECT_EQ(musubi_buckets({512, 512}, true).size(), 33u);
  EXPECT_EQ(chosen({512, 512}, {1920, 1080}), (PixelSize{672, 384}));
}

TEST(MusubiBuckets, WithoutBucketingThereIsOne) {
  EXPECT_EQ(musubi_buckets({960, 544}, false), (std::vector<PixelSize>{{960, 544}}));
}

TEST(MusubiBuckets, SmallImagesKeepTheirSizeWhereUpscalingIsOff) {
  EXPECT_EQ(chosen({512, 512}, {300, 200}, true), (PixelSize{288, 192}));
  EXPECT_EQ(chosen({512, 512}, {512, 512}, true), (PixelSize{512, 512}));
  EXPECT_EQ(chosen({512, 512}, {1920, 1080}, true), (PixelSize{672, 384}));
}

TEST(MusubiBuckets, ATinyResolutionStillEnds) {
  EXPECT_FALSE(musubi_buckets({16, 16}, true).empty());
  EXPECT_FAILS(musubi_buckets({8, 8}, true), ErrorCode::input, "too small");
}

TEST(MusubiResize, CoversTheBucket) {
  EXPECT_EQ(musubi_resized({1920, 1080}, {960, 544}), (PixelSize{967, 544}));
  EXPECT_EQ(musubi_resized({100, 50}, {400, 400}), (PixelSize{800, 400}));
}

TEST(MusubiClips, ByMode) {
  ClipRules rules{.target_frames = {25, 1, 26, 13}};
  EXPECT_EQ(musubi_target_frames(rules.target_frames), (std::vector<std::int64_t>{1, 13, 25}));
  EXPECT_EQ(musubi_clips(rules, 20), (std::vector<Clip>{{0, 1}, {0, 13}}));

  rules = {.target_frames = {9}, .extraction = FrameExtraction::chunk};
  EXPECT_EQ(musubi_clips(rules, 27), (std::vector<Clip>{{0, 9}, {9, 9}, {18, 9}}));
  EXPECT_EQ(musubi_clips(rules, 26), (std::vector<Clip>{{0, 9}, {9, 9}}));

  rules = {.target_frames = {9}, .extraction = FrameExtraction::slide, .stride = 4};
  EXPECT_EQ(musubi_clips(rules, 17), (std::vector<Clip>{{0, 9}, {4, 9}, {8, 9}}));
  EXPECT_TRUE(musubi_clips(rules, 8).empty());

  rules = {.target_frames = {9}, .extraction = FrameExtraction::uniform, .samples = 4};
  EXPECT_EQ(musubi_clips(rules, 20), (std::vector<Clip>{{0, 9}, {3, 9}, {7, 9}, {11, 9}}));
  rules.samples = 1;
  EXPECT_EQ(musubi_clips(rules, 20), (std::vector<Clip>{{0, 9}}));

  rules = {.extraction = FrameExtraction::full, .max_frames = 129};
  EXPECT_EQ(musubi_clips(rules, 200), (std::vector<Clip>{{0, 129}}));
  EXPECT_EQ(musubi_clips(rules, 24), (std::vector<Clip>{{0, 21}}));
  EXPECT_TRUE(musubi_clips(rules, 0).empty());
}

TEST(MusubiClips, FrameRatesAreLoweredByDropping) {
  // Six times 2/3, added up in double, is just below 4: frame 6 goes, which 6 * 2/3 would keep.
  EXPECT_EQ(musubi_kept_frames(9, 24, 16), (std::vector<std::int64_t>{0, 2, 3, 5, 7, 8}));
  EXPECT_EQ(musubi_kept_frames(4, 16, 16).size(), 4u);
  EXPECT_EQ(musubi_kept_frames(4, 8, 16).size(), 4u) << "frames are never doubled";
}

TEST(MusubiClips, ModesAreFoundByName) {
  EXPECT_EQ(find_frame_extraction("uniform"), FrameExtraction::uniform);
  EXPECT_FALSE(find_frame_extraction("Uniform").has_value());
}

}  // namespace
}  // namespace ballast::data
