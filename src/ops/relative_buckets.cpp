#include "ops/relative_buckets.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace ballast::ops {

RelativeBuckets relative_buckets(std::int64_t count, std::int64_t max_distance,
                                 bool bidirectional) {
  const std::int64_t side = bidirectional ? count / 2 : count;
  const std::int64_t exact = side / 2;
  check(count <= RelativeBuckets::kMax && exact >= 1 && max_distance > exact,
        "{} relative buckets for distances up to {}", count, max_distance);
  RelativeBuckets b;
  b.side = static_cast<std::int32_t>(side);
  b.bidirectional = bidirectional;
  // In f32, as the models were trained: an edge decides by the last bit.
  const auto bucket = [&](std::int64_t n) {
    if (n < exact) return n;
    const float share = std::log(static_cast<float>(n) / static_cast<float>(exact)) /
                        static_cast<float>(std::log(static_cast<double>(max_distance) /
                                                    static_cast<double>(exact)));
    const auto more = static_cast<std::int64_t>(share * static_cast<float>(side - exact));
    return std::min(side - 1, exact + more);
  };
  // Buckets that no distance falls into begin where the next one does.
  std::int64_t filled = 0;
  for (std::int64_t n = 0; filled < side && n <= 2 * max_distance; ++n) {
    for (; filled <= bucket(n); ++filled) b.edge[filled] = static_cast<std::int32_t>(n);
  }
  for (; filled < side; ++filled) b.edge[filled] = INT32_MAX;
  return b;
}

std::int64_t bucket_of(const RelativeBuckets& b, std::int64_t distance) {
  const std::int64_t offset = b.bidirectional && distance > 0 ? b.side : 0;
  const std::int64_t n =
      b.bidirectional && distance > 0 ? distance : std::max<std::int64_t>(0, -distance);
  const auto* end = std::upper_bound(b.edge, b.edge + b.side, n);
  return offset + (end - b.edge) - 1;
}

}  // namespace ballast::ops
