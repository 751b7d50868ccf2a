#pragma once

#include <cstdint>

namespace ballast {

// Token work is cut only at multiples of this many rows, counted from the first token of a sample,
// and contractions over tokens add up quantum by quantum in order. So every chunking of a sample,
// every thread count and every memory policy gives the same bits. 256 rows keep a GEMM panel
// efficient.
inline constexpr std::int64_t kTokenQuantum = 256;

// The same of whole weights' gradients on a GPU, where each quantum reads and writes all of a
// matrix: in models that are wide enough for it to matter (wan::row_unit()) work is cut at
// multiples of this.
inline constexpr std::int64_t kWideQuantum = 2048;

}  // namespace ballast
