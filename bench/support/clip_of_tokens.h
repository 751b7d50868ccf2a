#pragma once

#include <cstdint>

namespace ballast::bench {

// 480p, 81 frames: 32,760 tokens.
inline constexpr std::int64_t kChannels = 16, kFrames = 21, kHeight = 60, kWidth = 104;
inline constexpr std::int64_t kTokens = kFrames * kHeight / 2 * kWidth / 2;

}  // namespace ballast::bench
