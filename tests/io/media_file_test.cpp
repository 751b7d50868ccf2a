#include <gtest/gtest.h>
#include <malloc.h>

#include <filesystem>

#include "core/log.h"
#include "core/to_size.h"
#include "io/gif_writer.h"
#include "io/media_reader.h"
#include "io/media_writer.h"
#include "memory/process_memory.h"
#include "tests/support/allocation_hook.h"
#include "tests/support/errors.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_clip.h"

// Media files that were written and are read again.

namespace ballast::media_file_test {
namespace {

using test::clip_frame;
using test::psnr;
using test::read_whole;
using test::TempDir;
using test::write_clip;
using Pixels = std::vector<std::uint8_t>;

const std::string kComment = R"({"prompt": "a cat & <dog> — 猫", "seed": 7})";

class MediaFile : public testing::Test {
 protected:
  void SetUp() override {
    if (!media_available()) GTEST_SKIP() << "built without FFmpeg";
  }
  TempDir dir_;
};

std::vector<Pixels> all_frames(const std::string& path) {
  MediaReader reader = MediaReader::open(path);
  std::vector<Pixels> frames;
  for (Pixels frame(reader.frame_bytes()); reader.next(frame);) frames.push_back(frame);
  EXPECT_EQ(static_cast<std::int64_t>(frames.size()), reader.info().frames);
  return frames;
}

std::size_t files_in(const std::string& folder) {
  return to_size(std::distance(std::filesystem::directory_iterator(folder), {}));
}

void put_be32(std::string& bytes, std::size_t at, std::uint32_t v) {
  for (std::size_t i = 0; i < 4; ++i) bytes[at + i] = static_cast<char>(v >> (24 - 8 * i));
}

TEST_F(MediaFile, Mp4ComesBackWithItsFramesRateAndComment) {
  const std::string path = dir_.path("a b%d:c.mp4");
  for (const VideoColor color : {VideoColor::bt709, VideoColor::reference}) {
    write_clip(
        path, {.width = 64, .height = 48, .rate = {24, 1}, .color = color, .comment = kComment}, 9);
    const MediaInfo info = probe_media(path);
    EXPECT_EQ(info.container, "mov");
    EXPECT_EQ(info.codec, "h264");
    EXPECT_EQ(info.width, 64);
    EXPECT_EQ(info.height, 48);
    EXPECT_EQ(info.frames, 9);
    EXPECT_DOUBLE_EQ(info.fps, 24);
    EXPECT_NEAR(info.duration, 9 / 24.0, 1e-6);
    EXPECT_TRUE(info.constant_rate);
    EXPECT_FALSE(info.still);
    EXPECT_EQ(info.comment, kComment);
    const std::vector<Pixels> frames = all_frames(path);
    ASSERT_EQ(frames.size(), 9u);
    for (std::int64_t t = 0; t < 9; ++t) {
      // Three quarters of the chroma are not in the file, and the square has sharp edges.
      EXPECT_GT(psnr(frames[to_size(t)], clip_frame(64, 48, t)), 30) << t;
    }
    EXPECT_EQ(files_in(dir_.path()), 1u);  // nothing temporary stays
  }
}

TEST_F(MediaFile, Mp4OfTheSameFramesHasTheSameBytes) {
  for (const char* const name : {"1.mp4", "2.mp4"}) {
    write_clip(dir_.path(name), {.width = 32, .height = 32}, 5);
  }
  EXPECT_EQ(read_whole(dir_.path("1.mp4")), read_whole(dir_.path("2.mp4")));
}

// x264's macroblock tree looked at memory that it had not written: what stood there before, from
// other clips or another number of prompts, decided about the file.
TEST_F(MediaFile, Mp4DoesNotDependOnWhatMemoryHeldBefore) {
  std::vector<std::string> files;
  for (const int filled : {1, 85, 170, 255}) {
    mallopt(M_PERTURB, filled);
    write_clip(dir_.path("a.mp4"), {.width = 32, .height = 48}, 13);
    write_clip(dir_.path("b.mp4"), {.width = 64, .height = 64}, 13);
    mallopt(M_PERTURB, 0);
    files.push_back(read_whole(dir_.path("a.mp4")) + read_whole(dir_.path("b.mp4")));
    EXPECT_TRUE(files.back() == files.front()) << "memory filled with " << filled;
  }
}

// What the plan of a clip counts is what its encoder has taken when the last frame is added.
TEST_F(MediaFile, AnEncoderTakesWhatItIsSaidToTake) {
  SKIP_WITHOUT_ALLOCATION_HOOK();  // a sanitizer takes memory of its own
  const Bytes before = process_memory()->anonymous;
  for (const std::int64_t frames : {1, 5, 21}) {
    const auto writer = open_media_writer(dir_.path("a.mp4"), {.width = 832, .height = 480});
    for (std::int64_t t = 0; t < frames; ++t) writer->add(clip_frame(832, 480, t));
    const Bytes taken = process_memory()->anonymous - before;
    const MediaWriting said = media_writing("a.mp4", 832, 480, frames);
    EXPECT_LE(taken, said.libraries + said.encoder) << frames << " frames";
    writer->finish();
  }
  EXPECT_EQ(media_writing("a.gif", 832, 480, 21).libraries, Bytes{});
}

TEST_F(MediaFile, Mp4HasItsIndexInFront) {
  const std::string path = dir_.path("a.mp4");
  write_clip(path, {.width = 32, .height = 32}, 3);
  const std::string bytes = read_whole(path);
  EXPECT_LT(bytes.find("moov"), bytes.find("mdat"));
}

TEST_F(MediaFile, OddSizesOfMp4GainARowAndAColumn) {
  const std::string path = dir_.path("a.mp4");
  write_clip(path, {.width = 33, .height = 17}, 2);
  const MediaInfo info = probe_media(path);
  EXPECT_EQ(info.width, 34);
  EXPECT_EQ(info.height, 18);
  const Pixels frame = all_frames(path)[0], wanted = clip_frame(33, 17, 0);
  Pixels cut;
  for (std::size_t y = 0; y < 17; ++y) {
    const auto row = frame.begin() + static_cast<std::ptrdiff_t>(y * 34 * 3);
    cut.insert(cut.end(), row, row + 33 * 3);
  }
  EXPECT_GT(psnr(cut, wanted), 30);
}

TEST_F(MediaFile, LowerCrfIsNearer) {
  const auto quality_at = [&](int crf) {
    write_clip(dir_.path("a.mp4"), {.width = 64, .height = 48, .crf = crf}, 1);
    return psnr(all_frames(dir_.path("a.mp4"))[0], clip_frame(64, 48, 0));
  };
  EXPECT_GT(quality_at(5), quality_at(40) + 3);
}

TEST_F(MediaFile, PngsComeBackExactly) {
  write_clip(dir_.path("x.png"), {.width = 33, .height = 17, .comment = kComment}, 3);
  write_clip(dir_.path("y%03d.png"), {.width = 8, .height = 8, .comment = "plain"}, 2);
  for (std::int64_t t = 0; t < 3; ++t) {
    const std::string path = dir_.path(fmt::format("x_{:05}.png", t));
    EXPECT_EQ(read_image(path).pixels, clip_frame(33, 17, t));
    const MediaInfo info = probe_media(path);
    EXPECT_TRUE(info.still);
    EXPECT_EQ(info.container, "png");
    EXPECT_EQ(info.frames, 1);
    EXPECT_EQ(info.fps, 0);
    EXPECT_EQ(info.comment, kComment);
  }
  EXPECT_EQ(probe_media(dir_.path("y001.png")).comment, "plain");
  EXPECT_EQ(files_in(dir_.path()), 5u);
}

TEST_F(MediaFile, GifComesBackWithExactDelays) {
  const std::string path = dir_.path("a.gif");
  write_clip(path, {.width = 40, .height = 30, .rate = {16, 1}, .comment = kComment}, 17);
  const MediaInfo info = probe_media(path);
  EXPECT_EQ(info.frames, 17);
  EXPECT_EQ(info.comment, kComment);
  EXPECT_TRUE(info.constant_rate);
  EXPECT_NEAR(info.fps, 16, 0.01);  // 6, 6, 6, 7 hundredths
  EXPECT_NEAR(info.times[16], 1, 1e-9);
  const std::vector<Pixels> frames = all_frames(path);
  for (std::int64_t t = 0; t < 17; ++t) {
    EXPECT_GT(psnr(frames[to_size(t)], clip_frame(40, 30, t)), 34) << t;
  }
}

TEST_F(MediaFile, GifOfNoiseComesBackThroughFullTables) {
  // 120 x 120 pixels without repetition fill LZW's table several times.
  Pixels noise;
  std::uint32_t s = 1;
  for (int i = 0; i < 120 * 120; ++i) {
    s = s * 1664525u + 1013904223u;
    for (int c = 0; c < 3; ++c) noise.push_back(static_cast<std::uint8_t>(s >> 29 << 5));
  }
  const auto writer = open_media_writer(dir_.path("a.gif"), {.width = 120, .height = 120});
  writer->add(noise);
  writer->finish();
  EXPECT_EQ(read_image(dir_.path("a.gif")).pixels, noise);  // eight colours: exact
}

TEST_F(MediaFile, VariableRateIsReadFromTheTimes) {
  write_clip(dir_.path("a.gif"), {.width = 8, .height = 8, .rate = {10, 1}}, 5);
  std::string bytes = read_whole(dir_.path("a.gif"));
  // The second frame is shown for 90 hundredths instead of 10.
  const std::string_view control("\x21\xf9\x04\x04", 4);
  const std::size_t second = bytes.find(control, bytes.find(control) + 1);
  bytes[second + 4] = 90;
  const MediaInfo info = probe_media(dir_.write("b.gif", bytes));
  EXPECT_FALSE(info.constant_rate);
  ASSERT_EQ(info.times.size(), 5u);
  EXPECT_DOUBLE_EQ(info.times[1], 0.1);
  EXPECT_DOUBLE_EQ(info.times[2], 1.0);
  EXPECT_DOUBLE_EQ(info.times[4], 1.2);
}

TEST_F(MediaFile, AnimatedWebpHoldsEveryFrame) {
  const std::string path = dir_.path("a.webp");
  write_clip(path, {.width = 40, .height = 31, .rate = {16, 1}, .comment = kComment}, 5);
  const MediaInfo info = probe_media(path);
  EXPECT_EQ(info.container, "webp");
  EXPECT_EQ(info.width, 40);
  EXPECT_EQ(info.height, 31);
  EXPECT_EQ(info.frames, 5);
  EXPECT_NEAR(info.duration, 0.312, 1e-9);  // 62, 63, 62, 63, 62 ms
  EXPECT_EQ(info.comment, kComment);
  // Each frame by itself is a still WebP.
  const std::string bytes = read_whole(path);
  std::size_t at = 0;
  for (std::int64_t t = 0; t < 5; ++t) {
    at = bytes.find("ANMF", at) + 4;
    std::uint32_t size = 0;
    for (std::size_t i = 4; i-- > 0;) size = size << 8 | static_cast<std::uint8_t>(bytes[at + i]);
    std::string still = "RIFF";
    append_u32_le(still, size - 16 + 4);
    still += "WEBP" + bytes.substr(at + 4 + 16, size - 16);
    EXPECT_GT(psnr(read_image(dir_.write("one.webp", still)).pixels, clip_frame(40, 31, t)), 30);
  }
  EXPECT_FAILS(read_image(path), ErrorCode::input, "a.webp");
}

TEST_F(MediaFile, RotationOfAVideoIsApplied) {
  write_clip(dir_.path("a.mp4"), {.width = 64, .height = 32}, 2);
  std::string bytes = read_whole(dir_.path("a.mp4"));
  const std::size_t matrix = bytes.find("tkhd") + 4 + 40;
  for (const std::size_t i : {0u, 4u}) put_be32(bytes, matrix + 4 * i, 0);
  put_be32(bytes, matrix + 4, 0x10000);
  put_be32(bytes, matrix + 12, 0xffff0000u);
  const std::string path = dir_.write("turned.mp4", bytes);
  const MediaInfo info = probe_media(path);
  EXPECT_EQ(info.rotation, 90);
  EXPECT_FALSE(info.mirrored);
  ASSERT_EQ(info.width, 32);
  ASSERT_EQ(info.height, 64);
  const Pixels turned = all_frames(path)[0], plain = all_frames(dir_.path("a.mp4"))[0];
  for (std::size_t y = 0; y < 64; ++y) {
    for (std::size_t x = 0; x < 32; ++x) {  // the lower left corner goes to the upper left
      ASSERT_EQ(turned[(y * 32 + x) * 3], plain[((31 - x) * 64 + y) * 3]);
    }
  }
}

TEST_F(MediaFile, OrientationOfAJpegIsApplied) {
  const auto with_orientation = [&](char value) {
    std::string exif(
        "\xff\xe1\0\x22"
        "Exif\0\0II\x2a\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0",
        28);
    exif += value;
    exif += std::string(7, '\0');
    exif[3] = static_cast<char>(exif.size() - 2);
    std::string bytes = test::small_jpeg();
    bytes.insert(20, exif);
    return dir_.write("a.jpg", bytes);
  };
  const auto red_at = [](const RgbImage& i, std::int64_t x, std::int64_t y) {
    const std::size_t at = to_size((y * i.width + x) * 3);
    return i.pixels[at] > 150 && i.pixels[at + 2] < 100;
  };
  struct Case {
    char value;
    std::int64_t width, red_x, red_y, blue_x, blue_y;
  };
  for (const Case& c :
       {Case{1, 16, 1, 4, 14, 4}, Case{2, 16, 14, 4, 1, 4}, Case{3, 16, 14, 4, 1, 4},
        Case{6, 8, 4, 1, 4, 14}, Case{8, 8, 4, 14, 4, 1}, Case{5, 8, 4, 1, 4, 14},
        Case{7, 8, 4, 14, 4, 1}, Case{4, 16, 1, 4, 14, 4}}) {
    const RgbImage image = read_image(with_orientation(c.value));
    ASSERT_EQ(image.width, c.width) << int{c.value};
    EXPECT_TRUE(red_at(image, c.red_x, c.red_y)) << int{c.value};
    EXPECT_FALSE(red_at(image, c.blue_x, c.blue_y)) << int{c.value};
  }
}

TEST_F(MediaFile, BmpIsRead) {
  std::string bmp = "BM";
  append_u32_le(bmp, 54 + 16);
  append_u32_le(bmp, 0);
  append_u32_le(bmp, 54);
  append_u32_le(bmp, 40);
  append_u32_le(bmp, 2);
  append_u32_le(bmp, 2);
  append_u16_le(bmp, 1);
  append_u16_le(bmp, 24);
  for (const std::uint32_t v : {0u, 16u, 0u, 0u, 0u, 0u}) append_u32_le(bmp, v);
  bmp += std::string("\x01\x02\x03\x04\x05\x06\0\0\x07\x08\x09\x0a\x0b\x0c\0\0", 16);
  EXPECT_EQ(read_image(dir_.write("a.bmp", bmp)).pixels,
            (Pixels{9, 8, 7, 12, 11, 10, 3, 2, 1, 6, 5, 4}));
}

TEST_F(MediaFile, RewindStartsAgain) {
  write_clip(dir_.path("a.mp4"), {.width = 32, .height = 32}, 4);
  MediaReader reader = MediaReader::open(dir_.path("a.mp4"));
  Pixels first(reader.frame_bytes()), again(reader.frame_bytes());
  ASSERT_TRUE(reader.next(first));
  ASSERT_TRUE(reader.skip());
  EXPECT_EQ(reader.position(), 2);
  reader.rewind();
  EXPECT_EQ(reader.position(), 0);
  ASSERT_TRUE(reader.next(again));
  EXPECT_EQ(first, again);
}

TEST_F(MediaFile, NothingAppearsWithoutFinish) {
  for (const char* const name : {"a.mp4", "a.gif", "a.webp"}) {
    open_media_writer(dir_.path(name), {.width = 16, .height = 16})->add(clip_frame(16, 16, 0));
  }
  EXPECT_EQ(files_in(dir_.path()), 0u);
}

TEST_F(MediaFile, WhatCannotBeWrittenIsRefusedBeforeItIsComputed) {
  const MediaOptions good{.width = 16, .height = 16};
  for (const char* const name : {"a.mp4", "a.gif", "a.webp", "a.png", "a_%d.png"}) {
    EXPECT_NO_THROW(check_can_write_media(dir_.path(name), good)) << name;
  }
  EXPECT_EQ(files_in(dir_.path()), 0u);
  EXPECT_FAILS(check_can_write_media("a.avi", good), ErrorCode::usage, "ends in .mp4");
  EXPECT_FAILS(check_can_write_media("a%s.png", good), ErrorCode::usage, "one %d");
  EXPECT_FAILS(check_can_write_media("a%d%d.png", good), ErrorCode::usage, "one %d");
  EXPECT_FAILS(check_can_write_media("a.mp4", {.width = 0, .height = 2}), ErrorCode::usage,
               "0 x 2");
  EXPECT_FAILS(check_can_write_media("a.webp", {.width = 16'384, .height = 2}), ErrorCode::usage,
               "16383");
  EXPECT_FAILS(check_can_write_media("a.mp4", {.width = 2, .height = 2, .rate = {0, 1}}),
               ErrorCode::usage, "0 frames in 1 s");
  EXPECT_FAILS(check_can_write_media("a.mp4", {.width = 2, .height = 2, .crf = 52}),
               ErrorCode::usage, "crf 52");
  EXPECT_FAILS(check_can_write_media("a.mp4", {.width = 2, .height = 2, .comment = "\xff"}),
               ErrorCode::usage, "no text");
  EXPECT_FAILS(check_can_write_media(dir_.path("no/a.mp4"), good), ErrorCode::io, "no/a.mp4");
}

TEST(ContactSheet, PutsPicturesInRows) {
  ContactSheet sheet(2, 1, 2);
  for (const int v : {10, 20, 30}) sheet.add(Pixels(6, static_cast<std::uint8_t>(v)));
  const RgbImage image = sheet.image();
  EXPECT_EQ(image.width, 4 + 2 * 6);
  EXPECT_EQ(image.height, 4 + 2 * 5);
  const auto at = [&](std::int64_t x, std::int64_t y) {
    return image.pixels[to_size((y * image.width + x) * 3)];
  };
  EXPECT_EQ(at(4, 4), 10);
  EXPECT_EQ(at(11, 4), 20);
  EXPECT_EQ(at(5, 9), 30);
  EXPECT_EQ(at(10, 9), 255);
  EXPECT_EQ(at(0, 0), 255);
}

TEST(ContactSheet, FramesAreSpacedEvenly) {
  using Frames = std::vector<std::int64_t>;
  EXPECT_EQ(evenly_spaced(81, 5), (Frames{0, 20, 40, 60, 80}));
  EXPECT_EQ(evenly_spaced(3, 8), (Frames{0, 1, 2}));
  EXPECT_EQ(evenly_spaced(9, 1), (Frames{0}));
  EXPECT_EQ(evenly_spaced(0, 3), Frames{});
}

TEST(GifColors, FewColorsStayExact) {
  Pixels pixels;
  for (int i = 0; i < 300; ++i) {
    for (int c = 0; c < 3; ++c) pixels.push_back(static_cast<std::uint8_t>(i % 4 * 60 + c * 9));
  }
  const Paletted p = reduce_colors(pixels);
  for (std::size_t i = 0; i < pixels.size(); ++i) {
    ASSERT_EQ(p.colors[p.indices[i / 3] * 3u + i % 3], pixels[i]);
  }
}

}  // namespace
}  // namespace ballast::media_file_test
