#pragma once

#include <compare>
#include <cstdint>

namespace ballast {

struct PixelSize {
  std::int64_t width = 0, height = 0;

  friend auto operator<=>(const PixelSize&, const PixelSize&) = default;
};

}  // namespace ballast
