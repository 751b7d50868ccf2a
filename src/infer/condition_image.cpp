#include "infer/condition_image.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "core/error.h"
#include "core/to_size.h"
#include "io/resize_image.h"

namespace ballast::infer {
namespace {

constexpr std::int64_t kMaxSide = 1 << 16;
constexpr std::int64_t kMaxPixels = std::int64_t{1} << 28;

void check_size(PixelSize s, const char* what) {
  if (s.width >= 1 && s.height >= 1 && s.width <= kMaxSide && s.height <= kMaxSide &&
      s.width * s.height <= kMaxPixels) {
    return;
  }
  fail(ErrorCode::input, "{} is {} x {} pixels: expected 1 to {} a side and {} in all", what,
       s.width, s.height, kMaxSide, kMaxPixels);
}

void check_image(const ImageView& p) {
  check_size(p.size, "the image");
  check(std::ssize(p.rgb) == 3 * p.size.width * p.size.height, "{} bytes for {} x {} pixels",
        p.rgb.size(), p.size.width, p.size.height);
}

PixelSize checked(PixelSize s, PixelSize image, std::int64_t area) {
  if (s.width > 0 && s.height > 0) return s;
  fail(ErrorCode::input,
       "an image of {} x {} has no size of about {} pixels with its "
       "proportions: one side would be too small",
       image.width, image.height, area);
}

void check_area(PixelSize image, std::int64_t area) {
  check_size(image, "the image");
  if (area < 1 || area > kMaxPixels) {
    fail(ErrorCode::usage, "an area of {} pixels", area);
  }
}

// Four pixels and their weights for every place of a line.
struct CubicTaps {
  std::array<std::int64_t, 4> at;
  std::array<float, 4> weight;
};

std::vector<CubicTaps> cubic_taps(std::int64_t from, std::int64_t to) {
  constexpr float kA = -0.75f;
  const auto near = [](float x) { return ((kA + 2) * x - (kA + 3)) * x * x + 1; };
  const auto far = [](float x) { return ((kA * x - 5 * kA) * x + 8 * kA) * x - 4 * kA; };
  const float scale = static_cast<float>(from) / static_cast<float>(to);
  std::vector<CubicTaps> taps;
  for (std::int64_t i = 0; i < to; ++i) {
    const float x = scale * (static_cast<float>(i) + 0.5f) - 0.5f;
    const float whole = std::floor(x), t = x - whole;
    CubicTaps& c = taps.emplace_back();
    for (std::int64_t k = 0; k < 4; ++k) {
      c.at[to_size(k)] =
          std::clamp<std::int64_t>(static_cast<std::int64_t>(whole) + k - 1, 0, from - 1);
    }
    c.weight = {far(t + 1), near(t), near(1 - t), far(2 - t)};
  }
  return taps;
}

}  // namespace

PixelSize i2v_size(PixelSize image, std::int64_t area, std::int64_t multiple) {
  check_area(image, area);
  const double aspect = static_cast<double>(image.height) / static_cast<double>(image.width);
  const auto a = static_cast<double>(area), cell = static_cast<double>(multiple) / 2;
  const auto side = [&](double exact) {
    return static_cast<std::int64_t>(std::floor(std::floor(exact / cell) / 2)) * multiple;
  };
  return checked({side(std::sqrt(a / aspect)), side(std::sqrt(a * aspect))}, image, area);
}

PixelSize ti2v_size(PixelSize image, std::int64_t area, std::int64_t multiple) {
  check_area(image, area);
  const double r = static_cast<double>(image.width) / static_cast<double>(image.height);
  const auto a = static_cast<double>(area), m = static_cast<double>(multiple);
  const double width = std::sqrt(a * r), height = a / width;
  const auto down = [&](double x) { return std::floor(x / m) * m; };
  const auto off = [&](double w, double h) {
    if (!(w >= m && h >= m)) return std::numeric_limits<double>::infinity();
    return std::max(r / (w / h), w / h / r);
  };
  const double w1 = down(width), h1 = w1 > 0 ? down(a / w1) : 0;
  const double h2 = down(height), w2 = h2 > 0 ? down(a / h2) : 0;
  const bool one = off(w1, h1) < off(w2, h2);
  return checked(
      {static_cast<std::int64_t>(one ? w1 : w2), static_cast<std::int64_t>(one ? h1 : h2)}, image,
      area);
}

std::vector<float> i2v_frame(const ImageView& image, PixelSize to) {
  check_image(image);
  check_size(to, "the clip");
  const std::vector<CubicTaps> columns = cubic_taps(image.size.width, to.width),
                               rows = cubic_taps(image.size.height, to.height);
  std::vector<float> frame(to_size(3 * to.width * to.height));
  // v(p) = (p / 255 - 0.5) / 0.5
  std::array<float, 256> values{};
  for (std::size_t p = 0; p < values.size(); ++p) {
    values[p] = (static_cast<float>(p) / 255.0f - 0.5f) / 0.5f;
  }
  float* out = frame.data();
  for (std::int64_t c = 0; c < 3; ++c) {
    for (const CubicTaps& y : rows) {
      for (const CubicTaps& x : columns) {
        float sum = 0;
        for (std::size_t j = 0; j < 4; ++j) {
          const std::uint8_t* row = image.rgb.data() + y.at[j] * image.size.width * 3 + c;
          float line = 0;
          for (std::size_t i = 0; i < 4; ++i) line += x.weight[i] * values[row[x.at[i] * 3]];
          sum += y.weight[j] * line;
        }
        *out++ = sum;
      }
    }
  }
  return frame;
}

std::vector<std::uint8_t> resize_lanczos(const ImageView& image, PixelSize to) {
  check_image(image);
  check_size(to, "the resized image");
  std::vector<std::uint8_t> resized(to_size(3 * to.width * to.height));
  ImageResizer({.from_width = image.size.width,
                .from_height = image.size.height,
                .to_width = to.width,
                .to_height = to.height},
               ResizeFilter::lanczos)
      .resize(image.rgb, resized);
  return resized;
}

std::vector<float> ti2v_frame(const ImageView& image, PixelSize to) {
  check_image(image);
  check_size(to, "the clip");
  const auto w = static_cast<double>(image.size.width);
  const auto h = static_cast<double>(image.size.height);
  const double scale =
      std::max(static_cast<double>(to.width) / w, static_cast<double>(to.height) / h);
  // Half to even, as the reference rounds; never less than the clip needs.
  const PixelSize covering = {
      std::max(to.width, static_cast<std::int64_t>(std::nearbyint(w * scale))),
      std::max(to.height, static_cast<std::int64_t>(std::nearbyint(h * scale)))};
  const std::vector<std::uint8_t> pixels = resize_lanczos(image, covering);
  const std::int64_t left = (covering.width - to.width) / 2,
                     top = (covering.height - to.height) / 2;
  std::vector<float> frame(to_size(3 * to.width * to.height));
  float* out = frame.data();
  for (std::int64_t c = 0; c < 3; ++c) {
    for (std::int64_t y = 0; y < to.height; ++y) {
      const std::uint8_t* row = pixels.data() + ((top + y) * covering.width + left) * 3 + c;
      for (std::int64_t x = 0; x < to.width; ++x) {
        *out++ = static_cast<float>(row[x * 3]) / 255.0f * 2 - 1;
      }
    }
  }
  return frame;
}

}  // namespace ballast::infer
