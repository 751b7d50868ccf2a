#pragma once

// The 8-bit number formats of block-wise optimizer states: 256 values in [-1, 1] or [0, 1] whose
// steps shrink towards zero, seven decades deep. A block of states is stored as the codes of
// state / (largest magnitude of the block) and that magnitude.

#include <cstdint>

namespace ballast::ops {

// Elements of a tensor that share one magnitude, counted from its start.
inline constexpr std::int64_t kStateBlock = 256;

struct DynamicMap {
  // Numbers of one sign whose exponent and upper six fraction bits agree, from 2^-24 (and all below
  // it) to 1 (and all above it).
  static constexpr std::uint32_t kShift = 17, kFirst = (127 - 24) << 6, kBuckets = (24 << 6) + 1;

  float value[256];  // by code, ascending
  // The code of x is the number of thresholds at or below x; the last one is infinite.
  float threshold[256];
  // By sign bit and bucket: the code of the least number in it. The greatest is at most two higher.
  std::uint8_t start[2][kBuckets];

  static constexpr std::uint32_t bucket(std::uint32_t bits) {
    const std::uint32_t at = (bits & 0x7fffffffu) >> kShift;
    return at <= kFirst ? 0 : at - kFirst < kBuckets ? at - kFirst : kBuckets - 1;
  }
};

// For decade i = 0 ... 6: the means of neighbours in linspace(0.1, 1, K + 1), times 10^(i - 6),
// where K = 2^i with both signs, or 2^(i + 1) without; and 0 and 1. All in f32. Thresholds are the
// midpoints between values; a tie goes to the even code. With both signs the negative values end at
// zero itself, so that a code never loses the sign of what it stands for.
const DynamicMap& signed_map();
const DynamicMap& unsigned_map();

}  // namespace ballast::ops
