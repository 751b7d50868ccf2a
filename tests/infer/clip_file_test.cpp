#include "infer/clip_file.h"

#include <gmock/gmock.h>

#include <limits>

#include "core/to_size.h"
#include "io/media_reader.h"
#include "tests/support/errors.h"
#include "tests/support/temp_dir.h"

namespace ballast::infer {
namespace {

// Frames of one grey each, from black to white.
RgbImage thumbnails_of(std::int64_t width, std::int64_t height, std::int64_t frames) {
  const test::TempDir dir;
  ClipWriter writer({.path = dir.path("clip.gif"), .thumbnails = 64}, frames);
  for (std::int64_t f = 0; f < frames; ++f) {
    const float grey = 2 * static_cast<float>(f) / static_cast<float>(frames - 1) - 1;
    const std::vector<float> pixels(to_size(3 * width * height), grey);
    writer.add({.pixels = pixels, .first = f, .count = 1, .height = height, .width = width});
  }
  writer.finish();
  return writer.thumbnail_sheet();
}

// Four to a row, 4 pixels between and around them.
TEST(ClipWriter, ThumbnailsOfLargeFramesFitTheirSquare) {
  for (const auto& [width, height, small_width, small_height] :
       {std::tuple(200, 100, 64, 32), {100, 200, 32, 64}, {48, 32, 48, 32}}) {
    const RgbImage sheet = thumbnails_of(width, height, 9);
    EXPECT_EQ(sheet.width, 4 * (small_width + 4) + 4);
    EXPECT_EQ(sheet.height, 2 * (small_height + 4) + 4);
    const auto middle_of = [&](int column, int row) {
      const std::int64_t x = 4 + column * (small_width + 4) + small_width / 2;
      const std::int64_t y = 4 + row * (small_height + 4) + small_height / 2;
      return sheet.pixels[to_size(3 * (y * sheet.width + x))];
    };
    EXPECT_EQ(middle_of(0, 0), 0);
    EXPECT_EQ(middle_of(3, 1), 255);
    EXPECT_LT(middle_of(1, 0), middle_of(2, 0));
  }
}

TEST(ClipWriter, RefusesFramesThatAreNoNumbersAndLeavesNoFile) {
  const test::TempDir dir;
  for (const char* name : {"clip.gif", "image.png"}) {
    if (std::string(name) == "image.png" && !media_available()) continue;
    std::vector<float> pixels(3 * 16 * 16 * 2, 0.5f);
    const auto write = [&] {
      ClipWriter writer({.path = dir.path(name), .single_image = std::string(name) == "image.png"},
                        2);
      writer.add({.pixels = pixels, .first = 0, .count = 2, .height = 16, .width = 16});
      writer.finish();
    };
    pixels.back() = std::numeric_limits<float>::quiet_NaN();
    EXPECT_FAILS(write(), ErrorCode::input,
                 "frame 2 that the VAE decoded holds nan at element 767");
    EXPECT_FALSE(std::filesystem::exists(dir.path(name)));
    pixels.back() = 0.5f;
    write();
    EXPECT_TRUE(std::filesystem::exists(dir.path(name)));
  }
}

}  // namespace
}  // namespace ballast::infer
