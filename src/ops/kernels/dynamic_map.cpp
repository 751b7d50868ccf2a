#include "ops/kernels/dynamic_map.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "core/error.h"

namespace ballast::ops {
namespace {

// Element i of linspace(0.1, 1, steps + 1): from the nearer end, every operation rounded to f32.
// The casts keep a compiler from fusing multiplication and addition.
float boundary(int i, int steps) {
  constexpr float kFirst = 0.1f, kLast = 1.0f;
  const float step = (kLast - kFirst) / static_cast<float>(steps);
  const bool lower = i < (steps + 1) / 2;
  const auto way = static_cast<float>(static_cast<double>(step) * (lower ? i : steps - i));
  return lower ? kFirst + way : kLast - way;
}

int code_of(const DynamicMap& map, float x) {
  return static_cast<int>(std::upper_bound(map.threshold, map.threshold + 255, x) - map.threshold);
}

void fill_start(DynamicMap& map) {
  constexpr std::uint32_t kFractions = (1u << DynamicMap::kShift) - 1;
  for (std::uint32_t bucket = 0; bucket < DynamicMap::kBuckets; ++bucket) {
    const std::uint32_t bits = (DynamicMap::kFirst + bucket) << DynamicMap::kShift;
    const float near = bucket == 0 ? 0.0f : std::bit_cast<float>(bits);
    const float far =
        bucket + 1 == DynamicMap::kBuckets ? near : std::bit_cast<float>(bits | kFractions);
    map.start[0][bucket] = static_cast<std::uint8_t>(code_of(map, near));
    map.start[1][bucket] = static_cast<std::uint8_t>(code_of(map, -far));
    check(code_of(map, far) - code_of(map, near) <= 2 &&
              code_of(map, -near) - code_of(map, -far) <= 2,
          "more than two thresholds of a dynamic map lie between {} and {}", near, far);
  }
}

DynamicMap make_map(bool with_signs) {
  DynamicMap map;
  int n = 0;
  for (int decade = 0; decade < 7; ++decade) {
    const int steps = 1 << (with_signs ? decade : decade + 1);
    const auto scale = static_cast<float>(std::pow(10.0, decade - 6));
    for (int i = 0; i < steps; ++i) {
      const float x = (boundary(i, steps) + boundary(i + 1, steps)) / 2 * scale;
      map.value[n++] = x;
      if (with_signs) map.value[n++] = -x;
    }
  }
  map.value[n++] = 0;
  map.value[n++] = 1;
  check(n == 256, "a dynamic map has {} values", n);
  std::sort(map.value, map.value + 256);
  for (int k = 0; k < 255; ++k) {
    const float middle = (map.value[k] + map.value[k + 1]) * 0.5f;
    const bool tie_goes_up = k % 2 == 1;
    map.threshold[k] =
        tie_goes_up ? middle : std::nextafter(middle, std::numeric_limits<float>::infinity());
    if (map.value[k + 1] == 0) map.threshold[k] = 0;
  }
  map.threshold[255] = std::numeric_limits<float>::infinity();
  fill_start(map);
  return map;
}

}  // namespace

const DynamicMap& signed_map() {
  static const DynamicMap map = make_map(true);
  return map;
}

const DynamicMap& unsigned_map() {
  static const DynamicMap map = make_map(false);
  return map;
}

}  // namespace ballast::ops
