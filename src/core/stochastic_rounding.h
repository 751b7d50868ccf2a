#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "core/random.h"

namespace ballast {

// f32 -> bf16, f16, f8_e4m3 or f8_e5m2 without bias: between neighbours lo < |x| < hi the result is
// hi with probability (|x| - lo) / (hi - lo). Exact values never move, finite values stay finite
// (at most the largest of the format), infinity and NaN are as in convert(). from[i] takes word
// first + i of the source, so a tensor may be rounded in any pieces.
void round_stochastically(const float* from, void* to, DType to_type, std::int64_t n,
                          const RandomSource& source, std::uint64_t first);

}  // namespace ballast
