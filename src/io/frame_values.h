#pragma once

#include <cstdint>
#include <span>

namespace ballast {

// Pixels as a model has them, in [-1, 1], and as files have them. Any layout: value i is byte i.

// How (x + 1) / 2 * 255 becomes a whole number, x clamped to [-1, 1] first and NaN taken as -1.
enum class FrameRounding {
  truncate,  // as Wan writes video
  nearest,   // trunc(v + 0.5), as it writes still images
};
void to_bytes(std::span<const float> values, FrameRounding rounding, std::span<std::uint8_t> bytes);

// byte / 255 * 2 - 1, in f32.
void to_values(std::span<const std::uint8_t> bytes, std::span<float> values);

}  // namespace ballast
