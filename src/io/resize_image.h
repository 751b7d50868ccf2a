#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace ballast {

// Resampling of RGB images [height][width][3], 8 bits, as the programs do it whose users' data we
// prepare.
//
//   bicubic, lanczos  Pillow's: the filter (cubic with a = -0.5, support 2; sinc windowed by sinc,
//                     support 3) is widened by the scale when an image shrinks; first along x, then
//                     along y, 8 bits in between, weights in 22-bit fixed point. Bit for bit.
//   area              OpenCV's INTER_AREA for shrinking: mean over the covered area, in f32; whole
//                     scales are plain means. OpenCV adds in an order that its vector unit decides,
//                     so single values may differ by 1 where a mean is at half.
enum class ResizeFilter : std::uint8_t { bicubic, lanczos, area };

// The part of the source that fills the target, in pixels; halves of pixels are fine.
struct ResizeBox {
  double left = 0, top = 0, right = 0, bottom = 0;
};

// Weights are computed once; frames of one size then share them.
class ImageResizer {
 public:
  struct Sizes {
    std::int64_t from_width = 0, from_height = 0;
    std::int64_t to_width = 0, to_height = 0;
  };
  // Sizes are positive. The box lies in the source and is the whole of it for area, which only
  // shrinks.
  ImageResizer(const Sizes& sizes, const ResizeBox& box, ResizeFilter filter);
  ImageResizer(const Sizes& sizes, ResizeFilter filter);

  // `from` and `to` are whole images of these sizes.
  void resize(std::span<const std::uint8_t> from, std::span<std::uint8_t> to);

 private:
  // Target i is the sum over k < count of weight k times source first + k.
  struct Axis {
    struct Target {
      std::int64_t first = 0, count = 0;
      std::size_t weight = 0;  // index of its first
    };
    std::vector<Target> targets;
    std::vector<std::int32_t> fixed;  // Pillow
    std::vector<float> real;          // OpenCV
  };
  static Axis pillow_axis(double from, double to, std::int64_t source, std::int64_t target,
                          ResizeFilter filter);
  static Axis area_axis(std::int64_t source, std::int64_t target);
  void resize_pillow(std::span<const std::uint8_t> from, std::span<std::uint8_t> to);
  void resize_area(std::span<const std::uint8_t> from, std::span<std::uint8_t> to);
  void resize_whole_area(std::span<const std::uint8_t> from, std::span<std::uint8_t> to) const;

  Sizes sizes_;
  ResizeFilter filter_;
  Axis x_, y_;
  std::vector<std::uint8_t> rows_;   // [rows that y needs][to_width][3], Pillow
  std::vector<std::int32_t> sums_;   // [to_width][3], Pillow
  std::vector<float> row_, totals_;  // [to_width][3], OpenCV
};

// Pillow's ImageOps.fit with centring 0.5: the largest part in the middle of the source with the
// target's ratio.
ResizeBox fit_box(const ImageResizer::Sizes& sizes);

}  // namespace ballast
