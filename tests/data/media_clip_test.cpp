#include "data/media_clip.h"

#include <gtest/gtest.h>

#include "data/clip_reader.h"
#include "tests/support/errors.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_clip.h"

namespace ballast::data::media_clip_test {
namespace {

using test::TempDir;
using ::testing::ElementsAre;
using ::testing::SizeIs;
using Frames = std::vector<std::int64_t>;

// A file of n frames as the reader would describe it.
MediaInfo described(std::int64_t n, double fps, std::int64_t width = 64, std::int64_t height = 48) {
  MediaInfo info{.width = width, .height = height, .frames = n, .fps = fps};
  for (std::int64_t i = 0; i < n; ++i) info.times.push_back(static_cast<double>(i) / fps);
  return info;
}

MusubiDataset video_dataset(FrameExtraction mode, Frames targets) {
  MusubiDataset d;
  d.video = true;
  d.resolution = {64, 64};
  d.clips.extraction = mode;
  d.clips.target_frames = std::move(targets);
  d.clips.stride = 4;
  d.clips.samples = 3;
  d.clips.max_frames = 11;
  return d;
}

TEST(MediaClip, VideosAreKnownByTheirNames) {
  for (const char* const yes : {"a.mp4", "b.MKV", "c.x.webm", ".mov"}) {
    EXPECT_TRUE(is_video_name(yes)) << yes;
  }
  for (const char* const no : {"a.png", "mp4", "a.Mp4", "a.gif", "a.mp4.txt", ""}) {
    EXPECT_FALSE(is_video_name(no)) << no;
  }
}

TEST(MediaClip, FrameRateChangesByLeavingOutAndRepeating) {
  // 30 to 16: trunc(10 * 16 / 30) = 5 of trunc(linspace(0, 9, 5)).
  EXPECT_EQ(resampled_indices(described(10, 30), 16), (Frames{0, 2, 4, 6, 9}));
  EXPECT_EQ(resampled_indices(described(3, 8), 16), (Frames{0, 0, 0, 1, 1, 2}));
  EXPECT_EQ(resampled_indices(described(4, 16), 16), (Frames{0, 1, 2, 3}));
  EXPECT_EQ(resampled_indices(described(3, 30), 16), (Frames{0}));
  EXPECT_EQ(resampled_indices(described(1, 24), 16), (Frames{0}));
}

TEST(MediaClip, VariableRateTakesTheFrameThatIsShown) {
  MediaInfo info = described(5, 1 / 0.3);
  info.constant_rate = false;
  info.times = {0, 0.1, 1.0, 1.1, 1.2};  // the second frame stands for 0.9 s
  EXPECT_EQ(resampled_indices(info, 10), (Frames{0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 3, 4, 4, 4}));
}

TEST(MediaClip, DiffusionPipeTakesTheBeginningOrTheMiddle) {
  const MediaInfo info = described(30, 16);
  const ClipSize bucket{32, 32, 9};
  const ClipPlan beginning = diffusion_pipe_clip(info, true, bucket, "single_beginning", 16);
  ASSERT_THAT(beginning.clips, SizeIs(1));
  EXPECT_EQ(beginning.clips[0].clip, (Clip{0, 9}));
  EXPECT_EQ(beginning.clips[0].frames.back(), 8);
  const ClipPlan middle = diffusion_pipe_clip(info, true, bucket, "single_middle", 16);
  EXPECT_EQ(middle.clips[0].clip, (Clip{10, 9}));
  EXPECT_EQ(middle.clips[0].frames, (Frames{10, 11, 12, 13, 14, 15, 16, 17, 18}));
  const ClipPlan image = diffusion_pipe_clip(info, false, {32, 32, 1}, "single_middle", 16);
  EXPECT_EQ(image.clips[0].frames, (Frames{0}));
  EXPECT_FAILS(diffusion_pipe_clip(info, true, {32, 32, 33}, "single_beginning", 16),
               ErrorCode::input, "there are 30");
  EXPECT_FAILS(diffusion_pipe_clip(info, true, bucket, "multiple_overlapping", 16),
               ErrorCode::input, "single_middle");
}

TEST(MediaClip, MusubiMakesItsClipsInEveryMode) {
  const MediaInfo info = described(21, 16);
  const auto starts = [&](FrameExtraction mode, Frames targets) {
    std::vector<Clip> clips;
    for (const MediaClip& c :
         musubi_media_clips(info, video_dataset(mode, std::move(targets)), 16).clips) {
      clips.push_back(c.clip);
      EXPECT_EQ(static_cast<std::int64_t>(c.frames.size()), c.clip.frames);
      EXPECT_EQ(c.frames.front(), c.clip.start);
    }
    return clips;
  };
  EXPECT_THAT(starts(FrameExtraction::head, {10, 25, 1}), ElementsAre(Clip{0, 1}, Clip{0, 9}));
  EXPECT_THAT(starts(FrameExtraction::chunk, {9}), ElementsAre(Clip{0, 9}, Clip{9, 9}));
  EXPECT_THAT(starts(FrameExtraction::slide, {13}),
              ElementsAre(Clip{0, 13}, Clip{4, 13}, Clip{8, 13}));
  EXPECT_THAT(starts(FrameExtraction::uniform, {17}),
              ElementsAre(Clip{0, 17}, Clip{2, 17}, Clip{4, 17}));
  EXPECT_THAT(starts(FrameExtraction::full, {1}), ElementsAre(Clip{0, 9}));
}

TEST(MediaClip, MusubiDropsFramesOnlyWhereTheSourceRateIsGiven) {
  const MediaInfo info = described(12, 30);
  MusubiDataset d = video_dataset(FrameExtraction::head, {5});
  EXPECT_EQ(musubi_media_clips(info, d, 16).clips[0].frames, (Frames{0, 1, 2, 3, 4}));
  d.source_fps = 30.0;
  EXPECT_EQ(musubi_media_clips(info, d, 16).clips[0].frames, (Frames{0, 2, 4, 6, 8}));
}

TEST(MediaClip, MusubiSizesFollowItsBuckets) {
  MusubiDataset image;
  image.resolution = {512, 512};
  EXPECT_EQ(musubi_media_clips(described(1, 0, 1920, 1080), image, 16).size, (PixelSize{512, 512}));
  image.enable_bucket = true;
  EXPECT_EQ(musubi_media_clips(described(1, 0, 1920, 1080), image, 16).size, (PixelSize{672, 384}));
  image.no_upscale = true;
  EXPECT_EQ(musubi_media_clips(described(1, 0, 100, 70), image, 16).size, (PixelSize{96, 64}));
  EXPECT_FAILS(musubi_media_clips(described(1, 0, 100, 7), image, 16), ErrorCode::input, "100 x 7");
}

TEST(BucketScaler, ScalesAsEachTrainerDoes) {
  // Left half black, right half white, twice as wide as the bucket: fit keeps the middle.
  std::vector<std::uint8_t> wide;
  for (int i = 0; i < 16 * 8; ++i) wide.insert(wide.end(), 3, i % 16 < 8 ? 0 : 255);
  for (const MediaDialect dialect : {MediaDialect::diffusion_pipe, MediaDialect::musubi}) {
    std::vector<std::uint8_t> to(4 * 4 * 3);
    BucketScaler(dialect, {16, 8}, {4, 4}).scale(wide, to);
    EXPECT_EQ(to[0], 0);
    EXPECT_EQ(to[3 * 3], 255);
    // Two to one by area is a sharp edge, by the cubic a soft one that overshoots.
    if (dialect == MediaDialect::musubi) {
      EXPECT_EQ(to[3], 0);
    }
  }
  // Growing: both are Pillow's filters, with overshoot at the edge.
  std::vector<std::uint8_t> grown(32 * 16 * 3);
  BucketScaler(MediaDialect::musubi, {16, 8}, {32, 16}).scale(wide, grown);
  EXPECT_GT(grown[16 * 3], 128);
}

class ClipReading : public testing::Test {
 protected:
  void SetUp() override {
    if (!media_available()) GTEST_SKIP() << "built without FFmpeg";
  }
  std::string video(std::int64_t frames) const {
    const std::string path = dir_.path("a.mp4");
    test::write_clip(path, {.width = 64, .height = 48, .rate = {16, 1}}, frames, true);
    return path;
  }
  TempDir dir_;
};

// Which frames of the file a clip's pixels are, read by their grey; `at_once` frames per read.
Frames frames_read(ClipReader& reader, std::size_t at_once) {
  Frames numbers;
  const auto n = reader.clip().frames.size();
  for (std::size_t t = 0; t < n; t += at_once) {
    std::vector<float> values(std::min(at_once, n - t) * reader.frame_values());
    reader.read(values);
    for (std::size_t i = 0; i < values.size(); i += reader.frame_values()) {
      const float middle = values[i + reader.frame_values() / 2];
      numbers.push_back(
          test::grey_number(static_cast<std::uint8_t>((middle + 1) / 2 * 255 + 0.5f)));
    }
  }
  return numbers;
}

TEST_F(ClipReading, GivesTheFramesOfEveryMode) {
  const std::string path = video(21);
  for (const FrameExtraction mode :
       {FrameExtraction::head, FrameExtraction::chunk, FrameExtraction::slide,
        FrameExtraction::uniform, FrameExtraction::full}) {
    MediaReader media = MediaReader::open(path);
    ASSERT_EQ(media.info().frames, 21);
    const ClipPlan plan = musubi_media_clips(media.info(), video_dataset(mode, {5, 9}), 16);
    ASSERT_FALSE(plan.clips.empty());
    ClipReader reader(std::move(media), plan);
    std::size_t clips = 0;
    while (reader.next()) {
      EXPECT_EQ(frames_read(reader, 1 + clips % 3), reader.clip().frames);
      EXPECT_LE(reader.kept_frames(), 9u);
      ++clips;
    }
    EXPECT_EQ(clips, plan.clips.size());
  }
}

TEST_F(ClipReading, KeepsNothingWhereClipsDoNotOverlap) {
  MediaReader media = MediaReader::open(video(21));
  const ClipPlan plan =
      musubi_media_clips(media.info(), video_dataset(FrameExtraction::chunk, {5}), 16);
  ClipReader reader(std::move(media), plan);
  while (reader.next()) {
    frames_read(reader, 2);
    EXPECT_EQ(reader.kept_frames(), 0u);
  }
}

TEST_F(ClipReading, FollowsDiffusionPipesRate) {
  const std::string path = dir_.path("a.mp4");
  test::write_clip(path, {.width = 64, .height = 48, .rate = {30, 1}}, 40, true);
  MediaReader media = MediaReader::open(path);
  const ClipPlan plan = diffusion_pipe_clip(media.info(), true, {32, 48, 17}, "single_middle", 16);
  EXPECT_EQ(plan.clips[0].clip, (Clip{2, 17}));  // of trunc(40 * 16 / 30) = 21
  ClipReader reader(std::move(media), plan);
  ASSERT_TRUE(reader.next());
  EXPECT_EQ(frames_read(reader, 4), plan.clips[0].frames);
  EXPECT_FALSE(reader.next());
  std::vector<float> more(reader.frame_values());
  EXPECT_FAILS(reader.read(more), ErrorCode::internal, "17 frames");
}

TEST_F(ClipReading, MasksAreScaledAndReducedToTheLatentGrid) {
  RgbImage mask{.width = 32, .height = 32, .pixels = std::vector<std::uint8_t>(32 * 32 * 3)};
  for (std::size_t i = 0; i < mask.pixels.size(); ++i) {
    mask.pixels[i] = i / 3 % 32 < 16 ? 255 : 51;
  }
  write_png(dir_.path("m.png"), mask);
  const auto weights = read_loss_mask(dir_.path("m.png"), {32, 32}, {64, 64}, {4, 2});
  EXPECT_EQ(weights, (std::vector<float>{1, 1, 0.2f, 0.2f, 1, 1, 0.2f, 0.2f}));
  EXPECT_FAILS(read_loss_mask(dir_.path("m.png"), {32, 31}, {64, 64}, {4, 2}), ErrorCode::input,
               "32 x 31");
}

}  // namespace
}  // namespace ballast::data::media_clip_test
