#pragma once

// The vector part of ordered_sum.h, for kernel sources (_cpu.cpp) alone.

#include "ops/kernels/elementwise.h"
#include "ops/kernels/ordered_sum.h"

namespace ballast::ops::cpu::BALLAST_ISA {

// n sums, a power of two; they are overwritten.
inline double pairwise_sum(double* sum, std::int64_t n) {
  while ((n /= 2) > 0) {
    for (std::int64_t k = 0; k < n; ++k) sum[k] += sum[k + n];
  }
  return sum[0];
}

struct Factors {
  f32v a, b;
};

// The sum of a * b over [begin, end), factors(i, n) giving n <= kLanes of them at a time, zeros
// behind. Always 16 sums, however wide the machine's vectors are, and a product of two f32 is exact
// in f64: every instruction set gives the same bits.
template <class F>
inline double product_sum(std::int64_t begin, std::int64_t end, F&& factors) {
  // Two halves, because a sum wider than the machine's registers would live in memory.
  using f64w = double __attribute__((vector_size(kLanes * 8)));
  using f64v = double __attribute__((vector_size(kLanes * 4)));
  constexpr int kSums = 16, kVectors = kSums / kLanes;
  f64v sums[2 * kVectors] = {};
  const auto add = [&sums](int k, const Factors& f) {
    const f64w wide_a = __builtin_convertvector(f.a, f64w);
    const f64w wide_b = __builtin_convertvector(f.b, f64w);
    f64v a[2], b[2];
    __builtin_memcpy(a, &wide_a, sizeof wide_a);
    __builtin_memcpy(b, &wide_b, sizeof wide_b);
    sums[2 * k] += a[0] * b[0];
    sums[2 * k + 1] += a[1] * b[1];
  };
  std::int64_t i = begin;
  for (; i + kSums <= end; i += kSums) {
    for (int k = 0; k < kVectors; ++k) add(k, factors(i + k * kLanes, std::int64_t{kLanes}));
  }
  for (int k = 0; k < kVectors; ++k, i += kLanes) {
    if (i < end) add(k, factors(i, end - i < kLanes ? end - i : std::int64_t{kLanes}));
  }
  double sum[kSums];
  __builtin_memcpy(sum, sums, sizeof sum);
  return pairwise_sum(sum, kSums);
}

// The sum of value(i, n)^2.
template <class F>
inline double square_sum(std::int64_t begin, std::int64_t end, F&& value) {
  return product_sum(begin, end, [&](std::int64_t i, std::int64_t n) {
    const f32v x = value(i, n);
    return Factors{x, x};
  });
}

// The sums of a block's pieces, added by halves.
template <class F>
inline double block_sum(std::int64_t begin, std::int64_t end, F&& piece_sum) {
  double sum[kSumPieces] = {};
  for (std::int64_t k = 0; begin + k * kSumPiece < end; ++k) {
    const std::int64_t first = begin + k * kSumPiece, last = first + kSumPiece;
    sum[k] = piece_sum(first, last < end ? last : end);
  }
  return pairwise_sum(sum, kSumPieces);
}

// *sum += piece_sum(begin, end), in order block by block, or group by group of so many.
template <std::int64_t kTogether = 1, class F>
inline void add_ordered(ThreadPool& pool, std::int64_t n, double* sum, F&& piece_sum) {
  constexpr std::int64_t kAtOnce = 128;  // blocks between two meetings of the threads
  static_assert(kAtOnce % kTogether == 0);
  for (std::int64_t first = 0; first * kSumBlock < n; first += kAtOnce) {
    double partial[kAtOnce] = {};
    const std::int64_t left = (n + kSumBlock - 1) / kSumBlock - first;
    const std::int64_t blocks = left < kAtOnce ? left : kAtOnce;
    pool.parallel(blocks, [&](std::int64_t block, int) {
      const std::int64_t begin = (first + block) * kSumBlock, end = begin + kSumBlock;
      partial[block] = block_sum(begin, end < n ? end : n, piece_sum);
    });
    for (std::int64_t block = 0; block < blocks; block += kTogether) {
      *sum += pairwise_sum(partial + block, kTogether);
    }
  }
}

}  // namespace ballast::ops::cpu::BALLAST_ISA
