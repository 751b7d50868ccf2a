#pragma once

#include <cstdint>

namespace ballast {
class GpuQueue;
}

namespace ballast::ops::cuda {

// The sums of blocks (ops/kernels/ordered_sum.h) wait in GPU memory of the instruction's own until
// they are added in order: kSumPartials doubles, behind them kSumScalars for what an operation sums
// on the way to its result, and behind those the number of blocks that have finished.
inline constexpr std::int64_t kSumPartials = 8192, kSumScalars = 8;
inline constexpr std::int64_t kSumScratchBytes = (kSumPartials + kSumScalars + 1) * 8;

// Sums over rows (ops/kernels/column_sums.cuh) keep those of eighths of a quantum in memory of the
// queue's own: so many floats.
inline constexpr std::int64_t kColumnScratch = std::int64_t{1} << 18;
inline constexpr std::int64_t kColumnScratchBytes = kColumnScratch * 4;
float* column_scratch(GpuQueue& queue);

}  // namespace ballast::ops::cuda
