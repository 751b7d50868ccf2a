#pragma once

// Sums over all elements of a tensor whose bits depend on nothing but the elements: blocks of a
// fixed number of elements, counted from the tensor's start, are summed in f64 on any thread and
// added to the accumulator in order. A block is kSumPieces pieces, whose sums are added by halves,
// and a piece sixteen sums of every sixteenth element, added by halves too: a GPU gives a block to
// 512 threads of 64 elements each. Calls for consecutive parts of a tensor that are cut at
// multiples of kSumBlock give the same bits as one call. No memory is needed.

#include <cstdint>

namespace ballast::ops {

inline constexpr std::int64_t kSumPiece = 1024, kSumPieces = 32;
inline constexpr std::int64_t kSumBlock = kSumPiece * kSumPieces;

}  // namespace ballast::ops
