#pragma once

// Sums over all elements of a tensor whose bits depend on nothing but the elements: blocks of a
// fixed number of elements, counted from the tensor's start, are summed in f64 on any thread and
// added to the accumulator in order. A block is kSumPieces pieces, whose sums are added by halves,
// and a piece sixteen sums of every sixteenth element, added by halves too: a GPU gives a block to
// 512 threads of 64 elements each. Calls for consecutive parts of a tensor that are cut at
// multiples of kSumBlock give the same bits as one call. No memory is needed.
//
// Sums of squares go over whole models: there the blocks of kSumGroup elements are added by halves
// as well, and their sums in order, because a GPU takes as long to add a large tensor's blocks one
// after the other as to read half of it. Such a sum is cut at multiples of kSumGroup.

#include <cstdint>

namespace ballast::ops {

inline constexpr std::int64_t kSumPiece = 1024, kSumPieces = 32;
inline constexpr std::int64_t kSumBlock = kSumPiece * kSumPieces;
inline constexpr std::int64_t kGroupBlocks = 64, kSumGroup = kGroupBlocks * kSumBlock;
inline constexpr int kSquareTensors = 64;  // of a launch

}  // namespace ballast::ops
