#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "core/to_size.h"
#include "io/media_writer.h"

namespace ballast::test {

// Clips for tests: a slope of colours and a bright square that moves two pixels a frame, soft
// enough for every codec.
inline std::vector<std::uint8_t> clip_frame(std::int64_t width, std::int64_t height,
                                            std::int64_t t) {
  std::vector<std::uint8_t> pixels;
  for (std::int64_t y = 0; y < height; ++y) {
    for (std::int64_t x = 0; x < width; ++x) {
      const bool inside = x >= 2 * t + 4 && x < 2 * t + 12 && y >= 4 && y < 12;
      const auto slope = [&](std::int64_t v, std::int64_t n) {
        return static_cast<std::uint8_t>(inside ? 220 : 40 + 120 * v / n);
      };
      pixels.push_back(slope(x, width));
      pixels.push_back(slope(y, height));
      pixels.push_back(static_cast<std::uint8_t>(inside ? 200 : 60 + 8 * t % 120));
    }
  }
  return pixels;
}

// A frame of one grey: which of them it is can be read after any codec and any scaling.
inline std::vector<std::uint8_t> grey_frame(std::int64_t width, std::int64_t height,
                                            std::int64_t t) {
  return std::vector<std::uint8_t>(to_size(width * height * 3),
                                   static_cast<std::uint8_t>(20 + 4 * (t % 56)));
}
inline std::int64_t grey_number(std::uint8_t value) { return (value - 20 + 2) / 4; }

inline void write_clip(const std::string& path, const MediaOptions& options, std::int64_t frames,
                       bool grey = false) {
  const auto writer = open_media_writer(path, options);
  for (std::int64_t t = 0; t < frames; ++t) {
    writer->add((grey ? grey_frame : clip_frame)(options.width, options.height, t));
  }
  writer->finish();
}

inline double psnr(const std::vector<std::uint8_t>& a, const std::vector<std::uint8_t>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double d = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    sum += d * d;
  }
  return sum == 0 ? 99 : 10 * std::log10(255.0 * 255.0 * static_cast<double>(a.size()) / sum);
}

// 16 x 8 pixels, left half red, right half blue.
inline std::string small_jpeg() {
  constexpr const char* kHex =
      "ffd8ffe000104a46494600010200000100010000ffdb00430008040404040405050505050506060606060606"
      "06060606060607070708080807070706060707080808080909090808080809090a0a0a0c0c0b0b0e0e0e1111"
      "14ffc4004e000100000000000000000000000000000006010100000000000000000000000000000006100100"
      "0000000000000000000000000000001100030101000000000000000000000000000846c485ffc00011080008"
      "001003012200021100031100ffda000c03010002110311003f0016205e2054b2d5f1f78d9859aeae23ffd9";
  std::string bytes;
  for (const char* at = kHex; *at != '\0'; at += 2) {
    bytes += static_cast<char>(std::stoi(std::string(at, 2), nullptr, 16));
  }
  return bytes;
}

}  // namespace ballast::test
