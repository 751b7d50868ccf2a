#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "io/pixel_size.h"

namespace ballast::infer {

// An image that a clip begins with: how large the clip becomes and what the VAE encoder is given.

// Rows of red, green, blue, 8 bits each.
struct ImageView {
  PixelSize size;
  std::span<const std::uint8_t> rgb;
};

// I2V: the image's own proportions in about `area` pixels; sides are multiples of `multiple`
// (two latent cells of 8).
PixelSize i2v_size(PixelSize image, std::int64_t area, std::int64_t multiple = 16);

// TI2V: of two ways to round to multiples the one whose proportions are nearer.
PixelSize ti2v_size(PixelSize image, std::int64_t area, std::int64_t multiple = 32);

// I2V's first frame: bicubic (a = -0.75, half-pixel centres, edges repeated, no antialiasing), no
// crop. [3, height, width] in about [-1, 1]; the clip's other frames are 0.
std::vector<float> i2v_frame(const ImageView& image, PixelSize to);

// TI2V's only frame: Lanczos on 8-bit pixels until it covers the size, then its middle.
// [3, height, width] in [-1, 1].
std::vector<float> ti2v_frame(const ImageView& image, PixelSize to);

// As Pillow resizes (io/resize_image.h).
std::vector<std::uint8_t> resize_lanczos(const ImageView& image, PixelSize to);

}  // namespace ballast::infer
