#pragma once

#include <cstdint>

namespace ballast::ops {

// How T5 puts distances (key position - query position) into buckets: the near ones have one each,
// the far ones share them, logarithmically, and from max_distance on there is one for all.
// Bidirectional: half of the buckets are for keys behind the query (distance > 0). Else those count
// as distance 0. Plain data, so that CUDA sources read it, too.
struct RelativeBuckets {
  static constexpr int kMax = 256;
  std::int32_t side = 0;  // buckets of one direction
  bool bidirectional = true;
  std::int32_t edge[kMax] = {};  // smallest magnitude of each bucket of a direction
};

// count: rows of the table, 2 to kMax (4 to kMax and even when bidirectional).
RelativeBuckets relative_buckets(std::int64_t count, std::int64_t max_distance, bool bidirectional);

std::int64_t bucket_of(const RelativeBuckets& b, std::int64_t distance);

}  // namespace ballast::ops
