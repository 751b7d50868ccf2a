#pragma once

#include <cstdint>
#include <vector>

namespace ballast::ref {

// The buckets of 32 and a largest distance of 128, as tables.
inline std::int64_t t5_bucket(std::int64_t distance, bool bidirectional) {
  const std::int64_t magnitude = distance < 0 ? -distance : distance;
  const std::vector<std::int64_t> both = {8, 12, 16, 23, 32, 46, 64, 91};
  const std::vector<std::int64_t> causal = {16, 19, 21, 24, 27, 31, 35, 40,
                                            46, 52, 59, 67, 77, 87, 99, 113};
  const std::vector<std::int64_t>& edges = bidirectional ? both : causal;
  const std::int64_t n = !bidirectional && distance > 0 ? 0 : magnitude;
  std::int64_t bucket = n;
  if (n >= edges[0]) {
    bucket = edges[0] - 1;
    for (const std::int64_t e : edges) bucket += n >= e;
  }
  return bidirectional && distance > 0 ? 16 + bucket : bucket;
}

}  // namespace ballast::ref
