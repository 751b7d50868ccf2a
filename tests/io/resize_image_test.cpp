#include "io/resize_image.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "core/to_size.h"
#include "io/frame_values.h"
#include "tests/support/errors.h"

namespace ballast::resize_image_test {
namespace {

using Pixels = std::vector<std::uint8_t>;
using Sizes = ImageResizer::Sizes;

Pixels noise(std::int64_t width, std::int64_t height) {
  Pixels pixels(to_size(width * height * 3));
  std::uint32_t s = 12345;
  for (std::uint8_t& p : pixels) {
    s = (s * 1103515245u + 12345u) & 0x7fffffffu;
    p = static_cast<std::uint8_t>(s >> 16);
  }
  return pixels;
}

Pixels resized(const Sizes& s, const ResizeBox& box, ResizeFilter filter, const Pixels& from) {
  Pixels to(to_size(s.to_width * s.to_height * 3));
  ImageResizer(s, box, filter).resize(from, to);
  return to;
}

ResizeBox whole(const Sizes& s) {
  return {0, 0, static_cast<double>(s.from_width), static_cast<double>(s.from_height)};
}

std::uint32_t crc32_of(const Pixels& pixels) {
  std::uint32_t crc = ~0u;
  for (const std::uint8_t p : pixels) {
    crc ^= p;
    for (int i = 0; i < 8; ++i) crc = (crc >> 1) ^ (0xedb88320u & (0u - (crc & 1u)));
  }
  return ~crc;
}

// CRC-32 of what Pillow 9.4 makes of the noise above: ImageOps.fit(..., BICUBIC) and
// resize(..., LANCZOS).
TEST(ResizeImage, GivesTheBitsOfPillow) {
  struct Case {
    Sizes sizes;
    std::uint32_t fit, lanczos;
  };
  for (const Case& c : {Case{{37, 23, 16, 16}, 0x7b3a0c2fu, 0xdead4347u},
                        Case{{16, 16, 37, 23}, 0xee1fb22fu, 0x7103d211u},
                        Case{{64, 48, 32, 16}, 0x543151e0u, 0x991a93a1u},
                        Case{{33, 70, 48, 48}, 0x77fd9be4u, 0xa9bdae4bu},
                        Case{{20, 20, 20, 20}, 0x4d6387e0u, 0x4d6387e0u}}) {
    const Pixels from = noise(c.sizes.from_width, c.sizes.from_height);
    EXPECT_EQ(crc32_of(resized(c.sizes, fit_box(c.sizes), ResizeFilter::bicubic, from)), c.fit)
        << c.sizes.from_width;
    EXPECT_EQ(crc32_of(resized(c.sizes, whole(c.sizes), ResizeFilter::lanczos, from)), c.lanczos)
        << c.sizes.from_width;
  }
}

// CRC-32 of what OpenCV 4.6 makes of it with INTER_AREA: two by two, other whole scales, any scale,
// one axis only.
TEST(ResizeImage, GivesTheBitsOfOpenCvArea) {
  struct Case {
    Sizes sizes;
    std::uint32_t crc;
  };
  for (const Case& c : {Case{{37, 23, 16, 16}, 0x29540d3bu}, Case{{64, 48, 32, 24}, 0xc145cc3au},
                        Case{{64, 48, 16, 12}, 0xf70b430du}, Case{{70, 33, 48, 32}, 0x3418dd91u},
                        Case{{61, 45, 61, 20}, 0x2efc3a39u}, Case{{90, 60, 30, 30}, 0xafc5a390u}}) {
    const Pixels from = noise(c.sizes.from_width, c.sizes.from_height);
    EXPECT_EQ(crc32_of(resized(c.sizes, whole(c.sizes), ResizeFilter::area, from)), c.crc)
        << c.sizes.from_width << " to " << c.sizes.to_width;
  }
}

// The filters in double, two-dimensional, without rounding in between.
double kernel(ResizeFilter filter, double x) {
  x = std::abs(x);
  if (filter == ResizeFilter::bicubic) {
    if (x < 1) return 1.5 * x * x * x - 2.5 * x * x + 1;
    return x < 2 ? -0.5 * x * x * x + 2.5 * x * x - 4 * x + 2 : 0;
  }
  const auto sinc = [](double v) {
    return v == 0 ? 1 : std::sin(std::numbers::pi * v) / (std::numbers::pi * v);
  };
  return x < 3 ? sinc(x) * sinc(x / 3) : 0;
}

double weight(ResizeFilter filter, double from, double scale, std::int64_t target,
              std::int64_t at) {
  const double low = from + static_cast<double>(target) * scale, high = low + scale;
  const auto k = static_cast<double>(at);
  if (filter == ResizeFilter::area) return std::max(0.0, std::min(high, k + 1) - std::max(low, k));
  return kernel(filter, (k + 0.5 - (low + high) / 2) / std::max(scale, 1.0));
}

double reference(const Sizes& s, const ResizeBox& box, ResizeFilter filter, const Pixels& from,
                 std::int64_t x, std::int64_t y, std::int64_t channel) {
  const double sx = (box.right - box.left) / static_cast<double>(s.to_width);
  const double sy = (box.bottom - box.top) / static_cast<double>(s.to_height);
  double sum = 0, total = 0;
  for (std::int64_t j = 0; j < s.from_height; ++j) {
    const double wy = weight(filter, box.top, sy, y, j);
    for (std::int64_t i = 0; wy != 0 && i < s.from_width; ++i) {
      const double w = wy * weight(filter, box.left, sx, x, i);
      sum += w * from[to_size((j * s.from_width + i) * 3 + channel)];
      total += w;
    }
  }
  return std::clamp(sum / total, 0.0, 255.0);
}

TEST(ResizeImage, MatchesTheFiltersInDoublePrecision) {
  for (const Sizes& s : {Sizes{29, 17, 12, 8}, Sizes{24, 16, 12, 4}, Sizes{1, 1, 1, 1},
                         Sizes{19, 31, 19, 30}, Sizes{8, 9, 21, 33}}) {
    for (const ResizeFilter filter :
         {ResizeFilter::bicubic, ResizeFilter::lanczos, ResizeFilter::area}) {
      const bool area = filter == ResizeFilter::area;
      if (area && s.to_width > s.from_width) continue;
      const ResizeBox box = area ? whole(s) : fit_box(s);
      // Smooth, so that the clamp between the passes changes nothing.
      Pixels from = noise(s.from_width, s.from_height);
      for (std::uint8_t& p : from) p = static_cast<std::uint8_t>(90 + p / 8);
      const Pixels to = resized(s, box, filter, from);
      for (std::int64_t i = 0; i < s.to_width * s.to_height * 3; ++i) {
        const double expected =
            reference(s, box, filter, from, i / 3 % s.to_width, i / 3 / s.to_width, i % 3);
        // Rounded twice, and the first rounding passes weights that sum to 1.25 at most.
        ASSERT_NEAR(to[to_size(i)], expected, area ? 0.51 : 1.2)
            << s.from_width << " x " << s.from_height << " at " << i;
      }
    }
  }
}

TEST(ResizeImage, FitKeepsTheMiddleAndTheRatio) {
  const ResizeBox wide = fit_box({200, 100, 50, 50});
  EXPECT_EQ(wide.left, 50);
  EXPECT_EQ(wide.right, 150);
  EXPECT_EQ(wide.top, 0);
  EXPECT_EQ(wide.bottom, 100);
  const ResizeBox tall = fit_box({90, 200, 16, 9});
  EXPECT_EQ(tall.left, 0);
  EXPECT_EQ(tall.right, 90);
  EXPECT_DOUBLE_EQ(tall.bottom - tall.top, 90 / (16.0 / 9.0));
  EXPECT_DOUBLE_EQ(tall.top + tall.bottom, 200);
}

TEST(ResizeImage, RefusesSizesThatMakeNoImage) {
  EXPECT_FAILS(ImageResizer({0, 1, 1, 1}, ResizeFilter::area), ErrorCode::internal, "0 x 1");
  EXPECT_FAILS(ImageResizer({2, 2, 3, 2}, ResizeFilter::area), ErrorCode::internal, "grows");
  EXPECT_FAILS(ImageResizer({2, 2, 2, 2}, {0, 0, 2, 3}, ResizeFilter::bicubic), ErrorCode::internal,
               "the part");
}

TEST(FrameValues, AreRoundedTheWayThatIsAskedFor) {
  const std::vector<float> values = {
      -1, 1, 0, -2, 2, 0.999f, std::nanf(""), -std::numeric_limits<float>::infinity()};
  Pixels bytes(values.size());
  to_bytes(values, FrameRounding::truncate, bytes);
  EXPECT_EQ(bytes, (Pixels{0, 255, 127, 0, 255, 254, 0, 0}));
  to_bytes(values, FrameRounding::nearest, bytes);
  EXPECT_EQ(bytes, (Pixels{0, 255, 128, 0, 255, 255, 0, 0}));
}

TEST(FrameValues, ComeBackFromEveryByte) {
  Pixels bytes(256), again(256);
  for (std::size_t i = 0; i < 256; ++i) bytes[i] = static_cast<std::uint8_t>(i);
  std::vector<float> values(256);
  to_values(bytes, values);
  EXPECT_EQ(values[0], -1);
  EXPECT_EQ(values[255], 1);
  to_bytes(values, FrameRounding::nearest, again);
  EXPECT_EQ(bytes, again);
}

}  // namespace
}  // namespace ballast::resize_image_test
