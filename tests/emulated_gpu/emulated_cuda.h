#pragma once

// CUDA's kernel language for translated sources (translate.py): a block's threads are fibers of one
// host thread, which change at barriers and at exchanges within a warp. Blocks run one after the
// other. It finds wrong indices, sums and conversions; it finds no races.

#include <cuda_runtime.h>

#include <cmath>
#include <cstring>
#include <functional>

#undef __shared__
#define __shared__ static thread_local
#undef __launch_bounds__
#define __launch_bounds__(...)

// constinit: they are read without asking each time whether they were made.
extern constinit thread_local uint3 threadIdx, blockIdx;
extern constinit thread_local dim3 blockDim, gridDim;

namespace emulated {

void launch(dim3 grid, dim3 block, std::size_t shared, cudaStream_t stream,
            const std::function<void()>& kernel);
void* dynamic_shared();

void block_barrier();
void warp_barrier();

// Of the thread that runs: its number in the block, and what its warp exchanges until the next
// barrier, one slot per lane.
extern constinit thread_local std::size_t running;
extern constinit thread_local unsigned long long* running_slots;
inline unsigned long long* warp_slots() { return running_slots; }
inline unsigned lane() { return static_cast<unsigned>(running % 32); }

// One barrier is enough: who writes again before all have read does so into other slots.
template <class T>
T exchange(T value, unsigned from) {
  static_assert(sizeof(T) <= 8, "one slot");
  unsigned long long* const exchanged = warp_slots();
  std::memcpy(&exchanged[lane()], &value, sizeof value);
  warp_barrier();
  T other;
  std::memcpy(&other, &exchanged[from % 32], sizeof other);
  return other;
}

}  // namespace emulated

// Data of a module is data of the program.
template <class T>
cudaError_t cudaGetSymbolAddress(void** p, T& symbol) {
  return *p = &symbol, cudaSuccess;
}

inline void __syncthreads() { emulated::block_barrier(); }
inline void __syncwarp(unsigned = 0xffffffffu) { emulated::warp_barrier(); }
// Lanes exchange within groups of `width`.
template <class T>
T __shfl_xor_sync(unsigned, T x, int mask, int = 32) {
  return emulated::exchange(x, emulated::lane() ^ static_cast<unsigned>(mask));
}
template <class T>
T __shfl_sync(unsigned, T x, int from, int width = 32) {
  const unsigned group = emulated::lane() / static_cast<unsigned>(width);
  return emulated::exchange(
      x, group * static_cast<unsigned>(width) + static_cast<unsigned>(from % width));
}
template <class T>
T __shfl_down_sync(unsigned, T x, unsigned by, int width = 32) {
  const unsigned within = emulated::lane() % static_cast<unsigned>(width);
  const bool inside = within + by < static_cast<unsigned>(width);
  return emulated::exchange(x, emulated::lane() + (inside ? by : 0));
}
inline unsigned __reduce_max_sync(unsigned, unsigned x) {
  for (unsigned by = 16; by > 0; by /= 2) {
    const unsigned other = __shfl_xor_sync(0xffffffffu, x, static_cast<int>(by));
    x = other > x ? other : x;
  }
  return x;
}

inline unsigned max(unsigned a, unsigned b) { return a > b ? a : b; }
inline int max(int a, int b) { return a > b ? a : b; }
inline unsigned min(unsigned a, unsigned b) { return a < b ? a : b; }
inline int min(int a, int b) { return a < b ? a : b; }
inline unsigned atomicMax(unsigned* at, unsigned x) {
  const unsigned old = *at;
  *at = max(old, x);
  return old;
}

inline unsigned atomicAdd(unsigned* at, unsigned x) {
  const unsigned old = *at;
  *at = old + x;
  return old;
}
inline void __threadfence() {}

template <class To, class From>
To emulated_bits(From x) {
  static_assert(sizeof(To) == sizeof(From), "the same bits");
  To y;
  std::memcpy(&y, &x, sizeof y);
  return y;
}
inline unsigned __float_as_uint(float x) { return emulated_bits<unsigned>(x); }
inline float __uint_as_float(unsigned x) { return emulated_bits<float>(x); }
inline int __float_as_int(float x) { return emulated_bits<int>(x); }
inline float __int_as_float(int x) { return emulated_bits<float>(x); }
inline long long __double_as_longlong(double x) { return emulated_bits<long long>(x); }
inline double __longlong_as_double(long long x) { return emulated_bits<double>(x); }
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>((static_cast<unsigned long long>(a) * b) >> 32);
}

// One rounding each: the barrier keeps the compiler from contracting two of them.
inline float emulated_rounded(float x) {
  asm volatile("" : "+m"(x));
  return x;
}
inline float __fadd_rn(float a, float b) { return emulated_rounded(a + b); }
inline float __fsub_rn(float a, float b) { return emulated_rounded(a - b); }
inline float __fmul_rn(float a, float b) { return emulated_rounded(a * b); }
inline float __fdiv_rn(float a, float b) { return emulated_rounded(a / b); }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float __frcp_rn(float a) { return emulated_rounded(1 / a); }
inline float __fsqrt_rn(float a) { return emulated_rounded(std::sqrt(a)); }
inline float __frsqrt_rn(float a) {
  return static_cast<float>(1 / std::sqrt(static_cast<double>(a)));
}
inline float __fdividef(float a, float b) { return a / b; }
inline float __double2float_rn(double x) { return static_cast<float>(x); }
inline float rsqrtf(float x) { return 1 / std::sqrt(x); }
template <class T>
T __ldcs(const T* p) {
  return *p;
}
