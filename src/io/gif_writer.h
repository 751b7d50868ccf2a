#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "io/media_writer.h"

namespace ballast {

// A GIF of full frames, each with a palette of its own, repeated for ever.
std::unique_ptr<MediaWriter> open_gif(const std::string& path, const MediaOptions& options);

// At most 256 colours that stand for those of an image (RGB, 8 bits), by median cut over colours
// of 5 bits a channel, and which of them each pixel takes.
struct Paletted {
  std::array<std::uint8_t, 256 * 3> colors{};
  std::vector<std::uint8_t> indices;
};
Paletted reduce_colors(std::span<const std::uint8_t> pixels);

// GIF's form of LZW with codes from 9 bits on, in sub-blocks, with the leading code size.
MediaBytes gif_lzw(std::span<const std::uint8_t> indices);

}  // namespace ballast
