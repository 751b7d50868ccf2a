#pragma once

// The vector part of ordered_sum.h, for kernel sources (_cpu.cpp) alone.

#include "ops/elementwise.h"
#include "ops/ordered_sum.h"

namespace ballast::ops::cpu::BALLAST_ISA {

// The sum of value(i, n)^2 over [begin, end), n <= kLanes values at a time. Always 16 sums, however
// wide the machine's vectors are, and a square of an f32 is exact in f64: every instruction set
// gives the same bits.
template <class F>
inline double square_sum(std::int64_t begin, std::int64_t end, F&& value) {
  // Two halves, because a sum wider than the machine's registers would live in memory.
  using f64w = double __attribute__((vector_size(kLanes * 8)));
  using f64v = double __attribute__((vector_size(kLanes * 4)));
  constexpr int kSums = 16, kVectors = kSums / kLanes;
  f64v sums[2 * kVectors] = {};
  const auto add = [&sums](int k, f32v x) {
    const f64w wide = __builtin_convertvector(x, f64w);
    f64v half[2];
    __builtin_memcpy(half, &wide, sizeof wide);
    sums[2 * k] += half[0] * half[0];
    sums[2 * k + 1] += half[1] * half[1];
  };
  std::int64_t i = begin;
  for (; i + kSums <= end; i += kSums) {
    for (int k = 0; k < kVectors; ++k) add(k, value(i + k * kLanes, std::int64_t{kLanes}));
  }
  for (int k = 0; k < kVectors; ++k, i += kLanes) {
    if (i < end) add(k, value(i, end - i < kLanes ? end - i : std::int64_t{kLanes}));
  }
  double sum[kSums];
  __builtin_memcpy(sum, sums, sizeof sum);
  for (int n = kSums / 2; n > 0; n /= 2) {
    for (int k = 0; k < n; ++k) sum[k] += sum[k + n];
  }
  return sum[0];
}

// *sum += block_sum(begin, end), block by block in order.
template <class F>
inline void add_ordered(ThreadPool& pool, std::int64_t n, double* sum, F&& block_sum) {
  constexpr std::int64_t kGroup = 128;  // blocks between two meetings of the threads
  double partial[kGroup];
  for (std::int64_t first = 0; first * kSumBlock < n; first += kGroup) {
    const std::int64_t left = (n + kSumBlock - 1) / kSumBlock - first;
    const std::int64_t blocks = left < kGroup ? left : kGroup;
    pool.parallel(blocks, [&](std::int64_t block, int) {
      const std::int64_t begin = (first + block) * kSumBlock, end = begin + kSumBlock;
      partial[block] = block_sum(begin, end < n ? end : n);
    });
    for (std::int64_t block = 0; block < blocks; ++block) *sum += partial[block];
  }
}

}  // namespace ballast::ops::cpu::BALLAST_ISA
