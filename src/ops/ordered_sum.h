#pragma once

// Sums over all elements of a tensor whose bits depend on nothing but the elements: blocks of a
// fixed number of elements, counted from the tensor's start, are summed in f64 on any thread and
// added to the accumulator in order. Calls for consecutive parts of a tensor that are cut at
// multiples of kSumBlock give the same bits as one call. No memory is needed.

#include <cstdint>

namespace ballast::ops {

inline constexpr std::int64_t kSumBlock = 16384;

}  // namespace ballast::ops
