#pragma once

// What the 8-bit numbers of optimizer states are tested with.

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "ops/kernels/dynamic_map.h"

namespace ballast::support {

// The code of x, found as the kernels find it.
inline int code_of(const ops::DynamicMap& map, float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  int code = map.start[bits >> 31][ops::DynamicMap::bucket(bits)];
  for (int i = 0; i < 2; ++i) code += x >= map.threshold[code];
  return code;
}

// All values and middles of a map with their neighbours, and numbers between 0 and 1 of both signs.
inline std::vector<float> cases_of(const ops::DynamicMap& map) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  std::vector<float> xs = {0.0f, 1.0f, -1.0f};
  for (int k = 0; k < 255; ++k) {
    const float middle = (map.value[k] + map.value[k + 1]) * 0.5f;
    for (const float x : {map.value[k], middle, map.value[k + 1]}) {
      xs.insert(xs.end(), {std::nextafter(x, -kInf), x, std::nextafter(x, kInf)});
    }
  }
  for (std::uint32_t bits = 0; bits < 0x3f800000; bits += 99991) {
    xs.push_back(std::bit_cast<float>(bits));
    xs.push_back(-xs.back());
  }
  return xs;
}

}  // namespace ballast::support
