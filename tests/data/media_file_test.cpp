#include "data/media_file.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "core/error.h"
#include "data/latent_cache.h"
#include "io/media_writer.h"
#include "tests/support/errors.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_clip.h"

namespace ballast::data {
namespace {

class MediaFile : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!media_available()) GTEST_SKIP() << "built without media";
    std::filesystem::create_directories(dir_.path("frames"));
    // Written backwards: names decide, not times. One is of another size, one is no image.
    for (int i = 8; i >= 0; --i) {
      const std::int64_t width = i == 3 ? 64 : 32;
      write_png(dir_.path(fmt::format("frames/f{:02}.{}", i, i == 4 ? "PNG" : "png")),
                {.width = width, .height = width, .pixels = test::grey_frame(width, width, i)});
    }
    dir_.write("frames/notes.txt", "not a frame");
    dir_.write("empty/notes.txt", "no frame at all");
  }
  test::TempDir dir_;
};

TEST_F(MediaFile, AFolderOfPicturesIsAClipByTheirNames) {
  const auto media = open_media(dir_.path("frames"));
  EXPECT_EQ(media->info().frames, 9);
  EXPECT_EQ(media->info().width, 32);
  MusubiDataset d;
  d.video = true;
  d.resolution = {32, 32};
  d.clips.target_frames = {5};
  d.clips.extraction = FrameExtraction::chunk;
  d.source_fps = 60;  // says nothing of images
  ClipPlan plan = musubi_media_clips(media->info(), d, 16);
  ASSERT_EQ(plan.clips.size(), 1u);
  EXPECT_EQ(plan.clips[0].frames, (std::vector<std::int64_t>{0, 1, 2, 3, 4}));
  plan.clips.push_back({.clip = {4, 5}, .frames = {4, 5, 6, 7, 8}});
  media->begin(plan);
  for (std::int64_t first : {0, 4}) {
    ASSERT_TRUE(media->next());
    std::vector<float> frames(5 * 32 * 32 * 3);
    media->read(std::span(frames).first(3 * 32 * 32 * 3));
    media->read(std::span(frames).subspan(3 * 32 * 32 * 3));
    for (std::size_t f = 0; f < 5; ++f) {
      const float value = frames[f * 32 * 32 * 3 + 100];
      const auto byte = static_cast<std::uint8_t>((value + 1) * 127.5f + 0.5f);
      EXPECT_EQ(test::grey_number(byte), first + static_cast<std::int64_t>(f));
    }
  }
  EXPECT_FALSE(media->next());
}

TEST_F(MediaFile, AFolderChangesWithItsPictures) {
  const auto before = stamp_of(dir_.path("frames"));
  ASSERT_TRUE(before.has_value());
  EXPECT_EQ(before->name, "frames");
  EXPECT_EQ(stamp_of(dir_.path("frames")), before);
  std::filesystem::remove(dir_.path("frames/f08.png"));
  EXPECT_NE(stamp_of(dir_.path("frames")), before);
  EXPECT_FALSE(stamp_of(dir_.path("empty")).has_value());
  EXPECT_THROW(open_media(dir_.path("empty")), Error);
}

TEST_F(MediaFile, AnAnimatedWebpIsNoClip) {
  const std::string path = dir_.path("moves.webp");
  test::write_clip(path, {.width = 32, .height = 32, .rate = {16, 1}}, 3);
  EXPECT_FAILS(open_media(path), ErrorCode::input, "animated WebP");
}

TEST_F(MediaFile, LargerPicturesTakeMoreMemoryToRead) {
  test::write_clip(dir_.path("small.mp4"), {.width = 32, .height = 32}, 3);
  test::write_clip(dir_.path("large.mp4"), {.width = 320, .height = 320}, 3);
  const auto small = media_bytes(dir_.path("small.mp4"), {32, 32});
  const auto large = media_bytes(dir_.path("large.mp4"), {32, 32});
  ASSERT_TRUE(small && large);
  // H.264 of this size may refer to 16 images.
  EXPECT_GT(*large - *small, Bytes{16 * 320 * 320});
  EXPECT_LT(*large - *small, Bytes{64 * 320 * 320});
  EXPECT_TRUE(media_bytes(dir_.path("frames"), {32, 32}).has_value());
  EXPECT_FALSE(media_bytes(dir_.path("empty"), {32, 32}).has_value());
  EXPECT_FALSE(media_bytes(dir_.write("broken.mp4", "this is no video"), {32, 32}).has_value());
}

}  // namespace
}  // namespace ballast::data
