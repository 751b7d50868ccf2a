#include "examples/demo_model/sheet.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>

#include "core/error.h"
#include "examples/demo_model/prompt_in.h"
#include "io/media_writer.h"
#include "io/resize_image.h"

namespace ballast::demo {
namespace {

constexpr std::int64_t kGap = 4, kMiddle = 20, kLine = 22, kHeading = 26;

// a to z, 5 x 7 dots: a byte for each column, the lowest bit on top.
constexpr std::array<std::array<std::uint8_t, 5>, 26> kLetters = {{
    {0x20, 0x54, 0x54, 0x54, 0x78}, {0x7f, 0x48, 0x44, 0x44, 0x38}, {0x38, 0x44, 0x44, 0x44, 0x20},
    {0x38, 0x44, 0x44, 0x48, 0x7f}, {0x38, 0x54, 0x54, 0x54, 0x18}, {0x08, 0x7e, 0x09, 0x01, 0x02},
    {0x0c, 0x52, 0x52, 0x52, 0x3e}, {0x7f, 0x08, 0x04, 0x04, 0x78}, {0x00, 0x44, 0x7d, 0x40, 0x00},
    {0x20, 0x40, 0x44, 0x3d, 0x00}, {0x7f, 0x10, 0x28, 0x44, 0x00}, {0x00, 0x41, 0x7f, 0x40, 0x00},
    {0x7c, 0x04, 0x18, 0x04, 0x78}, {0x7c, 0x08, 0x04, 0x04, 0x78}, {0x38, 0x44, 0x44, 0x44, 0x38},
    {0x7c, 0x14, 0x14, 0x14, 0x08}, {0x08, 0x14, 0x14, 0x18, 0x7c}, {0x7c, 0x08, 0x04, 0x04, 0x08},
    {0x48, 0x54, 0x54, 0x54, 0x20}, {0x04, 0x3f, 0x44, 0x40, 0x20}, {0x3c, 0x40, 0x40, 0x20, 0x7c},
    {0x1c, 0x20, 0x40, 0x20, 0x1c}, {0x3c, 0x40, 0x30, 0x40, 0x3c}, {0x44, 0x28, 0x10, 0x28, 0x44},
    {0x0c, 0x50, 0x50, 0x50, 0x3c}, {0x44, 0x64, 0x54, 0x4c, 0x44},
}};

class Page {
 public:
  Page(std::int64_t width, std::int64_t height) {
    image_ = {width, height,
              std::vector<std::uint8_t>(static_cast<std::size_t>(width * height * 3), 255)};
  }

  void picture(std::int64_t x, std::int64_t y, const RgbImage& p) {
    for (std::int64_t row = 0; row < p.height; ++row) {
      std::copy_n(p.pixels.data() + row * p.width * 3, p.width * 3, at(x, y + row));
    }
  }
  // What is no letter leaves a space.
  void text(std::int64_t x, std::int64_t y, std::string_view words) {
    constexpr int kDot = 2;
    for (const char c : words) {
      for (int i = 0; c >= 'a' && c <= 'z' && i < 5 * 7 * kDot * kDot; ++i) {
        const int dx = i % (5 * kDot), dy = i / (5 * kDot);
        const std::uint8_t column =
            kLetters[static_cast<std::size_t>(c - 'a')][static_cast<std::size_t>(dx / kDot)];
        const bool dark = (column >> (dy / kDot) & 1) != 0;
        if (dark && x + dx < image_.width) std::fill_n(at(x + dx, y + dy), 3, std::uint8_t{40});
      }
      x += 6 * kDot;
    }
  }
  const RgbImage& image() const { return image_; }

 private:
  std::uint8_t* at(std::int64_t x, std::int64_t y) {
    return image_.pixels.data() + (y * image_.width + x) * 3;
  }
  RgbImage image_;
};

// Returns what the clip was made for.
std::string add_clip(Page& page, std::int64_t x, std::int64_t y, const std::string& path,
                     const SheetSize& size) {
  MediaReader reader = MediaReader::open(path);
  const MediaInfo info = reader.info();
  ImageResizer resizer({info.width, info.height, size.picture, size.picture},
                       ResizeFilter::bicubic);
  std::vector<std::uint8_t> frame(reader.frame_bytes());
  RgbImage picture = {
      size.picture, size.picture,
      std::vector<std::uint8_t>(static_cast<std::size_t>(size.picture * size.picture * 3))};
  for (const std::int64_t wanted : evenly_spaced(info.frames, size.frames)) {
    while (reader.position() < wanted && reader.skip()) {
    }
    if (!reader.next(frame)) break;
    resizer.resize(frame, picture.pixels);
    page.picture(x, y, picture);
    x += size.picture + kGap;
  }
  return prompt_in(info);
}

}  // namespace

void write_sheet(const std::string& output, const std::vector<SheetColumn>& columns,
                 const SheetSize& size) {
  const std::size_t lines = columns.empty() ? 0 : columns.front().clips.size();
  for (const SheetColumn& c : columns) {
    if (lines == 0 || c.clips.size() != lines) {
      fail(ErrorCode::usage,
           fmt::format("{} clips {} and {} {}: as many of each are expected", lines,
                       columns.front().heading, c.clips.size(), c.heading));
    }
  }
  const std::int64_t width = size.frames * (size.picture + kGap) - kGap;
  const std::int64_t row = kLine + size.picture + 2 * kGap;
  const auto count = std::ssize(columns);
  Page page(2 * kGap + count * (width + kMiddle) - kMiddle,
            kHeading + static_cast<std::int64_t>(lines) * row);
  std::int64_t x = kGap;
  for (const SheetColumn& column : columns) {
    page.text(x, 8, column.heading);
    for (std::size_t i = 0; i < lines; ++i) {
      const std::int64_t y = kHeading + static_cast<std::int64_t>(i) * row;
      const std::string prompt = add_clip(page, x, y + kLine, column.clips[i], size);
      if (&column == &columns.front()) page.text(x, y + 4, prompt);
    }
    x += width + kMiddle;
  }
  write_png(output, page.image());
}

}  // namespace ballast::demo
