#include "infer/condition_image.h"

#include <gtest/gtest.h>

#include "tests/support/errors.h"

namespace ballast::infer {
namespace {

constexpr std::int64_t k720 = 1280 * 720, k480 = 832 * 480, k704 = 1280 * 704;

TEST(ClipSizes, OfI2VFollowThePicture) {
  EXPECT_EQ(i2v_size({1920, 1080}, k720), (PixelSize{1280, 720}));
  EXPECT_EQ(i2v_size({1024, 1024}, k720), (PixelSize{960, 960}));
  EXPECT_EQ(i2v_size({640, 427}, k720), (PixelSize{1168, 784}));
  EXPECT_EQ(i2v_size({1920, 1080}, k480), (PixelSize{832, 464}));
  EXPECT_EQ(i2v_size({1024, 1024}, k480), (PixelSize{624, 624}));
  EXPECT_EQ(i2v_size({640, 427}, k480), (PixelSize{768, 512}));
}

TEST(ClipSizes, OfTI2VAreTheNearerOfTwo) {
  EXPECT_EQ(ti2v_size({1920, 1080}, k704), (PixelSize{1248, 704}));
  EXPECT_EQ(ti2v_size({1280, 704}, k704), (PixelSize{1280, 704}));
  EXPECT_EQ(ti2v_size({1024, 1024}, k704), (PixelSize{960, 928}));
  EXPECT_EQ(ti2v_size({1080, 1920}, k704), (PixelSize{704, 1248}));
  EXPECT_EQ(ti2v_size({640, 427}, k704), (PixelSize{1152, 768}));
}

TEST(ClipSizes, PicturesWithoutOneAreRefused) {
  EXPECT_FAILS(i2v_size({60000, 1}, k480), ErrorCode::input, "too small");
  EXPECT_FAILS(ti2v_size({1, 60000}, k704), ErrorCode::input, "too small");
  EXPECT_FAILS(i2v_size({0, 10}, k480), ErrorCode::input, "0 x 10");
  EXPECT_FAILS(ti2v_size({10, -1}, k704), ErrorCode::input, "10 x -1");
  EXPECT_FAILS(i2v_size({std::int64_t{1} << 40, 1}, k480), ErrorCode::input, "pixels");
  EXPECT_FAILS(i2v_size({10, 10}, 0), ErrorCode::usage, "area");
}

TEST(ConditionImages, OneColourStaysThatColour) {
  const std::vector<std::uint8_t> rgb(3 * 7 * 5, 200);
  const ImageView image = {{7, 5}, rgb};
  for (const float v : i2v_frame(image, {16, 32})) {
    EXPECT_NEAR(v, 200.0f / 255 * 2 - 1, 1e-6);
  }
  for (const float v : ti2v_frame(image, {32, 32})) {
    EXPECT_EQ(v, 200.0f / 255.0f * 2 - 1);
  }
}

TEST(ConditionImages, TheirOwnSizeLeavesPixelsAsTheyAre) {
  std::vector<std::uint8_t> rgb;
  for (int i = 0; i < 3 * 4 * 2; ++i) rgb.push_back(static_cast<std::uint8_t>(10 * i));
  const ImageView image = {{4, 2}, rgb};
  EXPECT_EQ(resize_lanczos(image, {4, 2}), rgb);
  const std::vector<float> frame = ti2v_frame(image, {4, 2});
  const std::vector<float> cubic = i2v_frame(image, {4, 2});
  for (std::size_t p = 0; p < 8; ++p) {
    for (std::size_t c = 0; c < 3; ++c) {  // colours apart, rows in order
      EXPECT_EQ(frame[c * 8 + p], static_cast<float>(rgb[p * 3 + c]) / 255.0f * 2 - 1);
      EXPECT_NEAR(cubic[c * 8 + p], frame[c * 8 + p], 1e-6);
    }
  }
}

TEST(ConditionImages, TheMiddleOfALongPictureIsTaken) {
  std::vector<std::uint8_t> rgb(3 * 9 * 2, 0);
  for (const std::size_t row : {0, 1}) {
    for (const std::size_t x : {3, 4, 5}) rgb[(row * 9 + x) * 3] = 255;  // red in columns 3 to 5
  }
  const std::vector<float> frame = ti2v_frame({{9, 2}, rgb}, {3, 2});
  for (std::size_t i = 0; i < 6; ++i) EXPECT_EQ(frame[i], 1) << i;
  for (std::size_t i = 6; i < 18; ++i) EXPECT_EQ(frame[i], -1) << i;
}

TEST(ConditionImages, APictureThatWouldGrowBeyondMeasureIsRefused) {
  const std::vector<std::uint8_t> rgb(3 * 30000);
  EXPECT_FAILS(ti2v_frame({{30000, 1}, rgb}, {960, 928}), ErrorCode::input, "resized image");
}

}  // namespace
}  // namespace ballast::infer
