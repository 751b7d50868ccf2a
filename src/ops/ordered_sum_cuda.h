#pragma once

#include <cstdint>

namespace ballast {
class GpuQueue;
}

namespace ballast::ops::cuda {

// The sums of blocks (ops/ordered_sum.h) wait in memory of the queue's own until they are added in
// order: kSumPartials doubles, and behind them kSumScalars for what an operation sums on the way to
// its result.
inline constexpr std::int64_t kSumPartials = 8192, kSumScalars = 8;
double* sum_scratch(GpuQueue& queue);

}  // namespace ballast::ops::cuda
