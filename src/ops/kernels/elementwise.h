#pragma once

// For kernel sources (_cpu.cpp): elements that do not depend on each other, vector by vector.
//
// Whole vectors and the tail go through the same function, so an element's bits depend neither on
// where in a vector it sits nor on how the elements are shared out among threads.

#include "core/simd_convert.h"
#include "core/thread_pool.h"

namespace ballast::ops::cpu::BALLAST_ISA {

using simd::BALLAST_ISA::f32v;
// Declared here because ballast::kLanes (of the plan) would be found otherwise.
using simd::BALLAST_ISA::kLanes;

// n <= kLanes elements; the lanes behind them are zero.
template <DType T>
inline f32v read(const Element<T>* p, std::int64_t n) {
  return n == kLanes ? simd::BALLAST_ISA::load_f32<T>(p)
                     : simd::BALLAST_ISA::load_f32_partial<T>(p, n);
}
template <DType T>
inline void write(Element<T>* p, f32v x, std::int64_t n) {
  if (n == kLanes) {
    simd::BALLAST_ISA::store_f32<T>(p, x);
  } else {
    simd::BALLAST_ISA::store_f32_partial<T>(p, x, n);
  }
}

// f(i, n) for the n <= kLanes elements from i on, over [begin, end).
template <class F>
inline void each_vector(std::int64_t begin, std::int64_t end, F&& f) {
  std::int64_t i = begin;
  for (; i + kLanes <= end; i += kLanes) f(i, std::int64_t{kLanes});
  if (i < end) f(i, end - i);
}

// The same over [0, n) on all threads. 16384 elements are 5 to 10 microseconds of work, well above
// the price of handing out a task.
inline constexpr std::int64_t kElementsPerTask = 16384;
template <class F>
inline void each_vector(ThreadPool& pool, std::int64_t n, F&& f) {
  pool.parallel((n + kElementsPerTask - 1) / kElementsPerTask, [&](std::int64_t task, int) {
    const std::int64_t begin = task * kElementsPerTask, end = begin + kElementsPerTask;
    each_vector(begin, end < n ? end : n, f);
  });
}

}  // namespace ballast::ops::cpu::BALLAST_ISA
