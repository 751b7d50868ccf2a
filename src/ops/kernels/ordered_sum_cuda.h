#pragma once

#include <cstdint>

#include "ops/kernels/token_quantum.h"

namespace ballast::ops::cuda {

// The sums of blocks (ops/kernels/ordered_sum.h) wait in GPU memory of the instruction's own until
// they are added in order: kSumPartials doubles, behind them kSumScalars for what an operation sums
// on the way to its result, and behind those the number of blocks that have finished.
inline constexpr std::int64_t kSumPartials = 8192, kSumScalars = 8;
inline constexpr std::int64_t kSumScratchBytes = (kSumPartials + kSumScalars + 1) * 8;

// Sums over rows (ops/kernels/column_sums.cuh) keep those of eighths of a quantum there, of whole
// quanta at a time: at most so many floats.
inline constexpr int kEighths = 8;
inline constexpr std::int64_t kEighthRows = kTokenQuantum / kEighths;
inline constexpr std::int64_t kColumnScratch = std::int64_t{1} << 18;
inline constexpr std::int64_t kColumnScratchBytes = kColumnScratch * 4;
// Rows summed at a time; 0: rows so short, long or odd are summed without scratch.
constexpr std::int64_t rows_in_column_scratch(std::int64_t columns) {
  if (columns == 0 || columns % 8 != 0) return 0;
  return kColumnScratch / (columns * kEighths) * kTokenQuantum;
}
constexpr std::int64_t column_scratch_bytes(std::int64_t rows, std::int64_t columns) {
  const std::int64_t most = rows_in_column_scratch(columns), here = rows < most ? rows : most;
  return (here + kEighthRows - 1) / kEighthRows * columns * 4;
}

}  // namespace ballast::ops::cuda
