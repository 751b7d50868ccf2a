#include "io/frame_values.h"

#include "core/error.h"

namespace ballast {

void to_bytes(std::span<const float> values, FrameRounding rounding,
              std::span<std::uint8_t> bytes) {
  check(values.size() == bytes.size(), "{} values become {} bytes", values.size(), bytes.size());
  const float add = rounding == FrameRounding::nearest ? 0.5f : 0.f;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float x = values[i] > -1.f ? (values[i] < 1.f ? values[i] : 1.f) : -1.f;  // NaN: -1
    bytes[i] = static_cast<std::uint8_t>((x + 1.f) / 2.f * 255.f + add);
  }
}

void to_values(std::span<const std::uint8_t> bytes, std::span<float> values) {
  check(values.size() == bytes.size(), "{} bytes become {} values", bytes.size(), values.size());
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    values[i] = static_cast<float>(bytes[i]) / 255.f * 2.f - 1.f;
  }
}

}  // namespace ballast
