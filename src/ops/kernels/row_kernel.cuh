#pragma once

// What row-wise kernels share; included by .cu files only. Two ways to look at a matrix [R, C]:
//   any dtype, stride, width and alignment: element by element, the dtype decided at run time
//   in eights: 16-byte loads and stores, the dtype decided when compiling
// The second is chosen by dtype, width and alignment, never by the number of rows: all cuts of a
// sample go the same way.

#include <type_traits>

#include "ops/kernels/cuda_kernel.cuh"
#include "ops/kernels/ordered_sum_cuda.h"

namespace ballast::ops::cuda {

// ---- any matrix

struct Matrix {
  void* data;  // null: absent
  DType dtype;
  std::int64_t step;  // elements from row to row
};
inline Matrix matrix(const View& v) { return {v.data, v.dtype, v.rank > 1 ? v.strides[0] : 0}; }

__device__ __forceinline__ float read(const Matrix& m, std::int64_t row, std::int64_t c) {
  const std::int64_t i = row * m.step + c;
  if (m.dtype == DType::f32) return static_cast<const float*>(m.data)[i];
  if (m.dtype == DType::bf16) return to_float(static_cast<const bf16*>(m.data)[i]);
  return to_float(static_cast<const f16*>(m.data)[i]);
}
__device__ __forceinline__ void write(const Matrix& m, std::int64_t row, std::int64_t c, float x) {
  const std::int64_t i = row * m.step + c;
  if (m.dtype == DType::f32) {
    static_cast<float*>(m.data)[i] = x;
  } else {
    static_cast<bf16*>(m.data)[i] = from_float<bf16>(x);
  }
}

// The row of a table [T, C] that token r uses: row 0 without an index.
__device__ __forceinline__ int table_row(const std::int32_t* index, std::int64_t r) {
  return index ? index[r] : 0;
}

// block_sum, after which scratch may be used again at once.
__device__ __forceinline__ float row_sum(float x, float* scratch) {
  const float sum = block_sum(x, scratch);
  __syncthreads();
  return sum;
}

// ---- eights

// With one instruction, also where the compiler leaves four of what it made of pairs.
__device__ __forceinline__ void store_sixteen(uint4* p, const uint4& x) {
#ifdef __CUDACC__
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(p)),
               "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w)
               : "memory");
#else
  *p = x;
#endif
}

// Eight elements as they lie in memory: 4 or 8 registers, half of what they take as f32 for bf16.
template <class E>
struct Eight {
  static constexpr int kWords = sizeof(E) / 2;
  uint4 raw[kWords];

  __device__ __forceinline__ void load(const E* p) {
#pragma unroll
    for (int w = 0; w < kWords; ++w) raw[w] = reinterpret_cast<const uint4*>(p)[w];
  }
  // For what is not read again soon: it leaves the caches first.
  __device__ __forceinline__ void load_once(const E* p) {
#pragma unroll
    for (int w = 0; w < kWords; ++w) raw[w] = __ldcs(reinterpret_cast<const uint4*>(p) + w);
  }
  __device__ __forceinline__ void store(E* p) const {
#pragma unroll
    for (int w = 0; w < kWords; ++w) store_sixteen(reinterpret_cast<uint4*>(p) + w, raw[w]);
  }
  // What follows is as if loaded anew: the compiler unpacks again instead of keeping the f32 values
  // in twice as many registers.
  __device__ __forceinline__ void forget_unpacked() {
    if constexpr (sizeof(E) == 2) {
      asm volatile("" : "+r"(raw[0].x), "+r"(raw[0].y), "+r"(raw[0].z), "+r"(raw[0].w));
    }
  }
  __device__ __forceinline__ void unpack(float* x) const {
    if constexpr (std::is_same_v<E, bf16>) {
      // By hand: one instruction each, where the compiler takes two for the upper halves.
      const std::uint32_t pair[4] = {raw[0].x, raw[0].y, raw[0].z, raw[0].w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        x[2 * i] = __uint_as_float(pair[i] << 16);
        x[2 * i + 1] = __uint_as_float(pair[i] & 0xffff0000u);
      }
    } else {
      const E* e = reinterpret_cast<const E*>(raw);
#pragma unroll
      for (int i = 0; i < 8; ++i) x[i] = to_float(e[i]);
    }
  }
};

__device__ __forceinline__ void store_eight(float* p, const float* x) {
  reinterpret_cast<float4*>(p)[0] = make_float4(x[0], x[1], x[2], x[3]);
  reinterpret_cast<float4*>(p)[1] = make_float4(x[4], x[5], x[6], x[7]);
}
__device__ __forceinline__ void store_eight(bf16* p, const float* x) {
  uint4 u;
  auto* pair = reinterpret_cast<__nv_bfloat162*>(&u);  // converted two at a time
#pragma unroll
  for (int i = 0; i < 4; ++i) pair[i] = __floats2bfloat162_rn(x[2 * i], x[2 * i + 1]);
  *reinterpret_cast<uint4*>(p) = u;
}

// Eight numbers, rounded to E.
template <class E>
__device__ __forceinline__ void pack_eight(Eight<E>& to, const float* x) {
  store_eight(reinterpret_cast<E*>(to.raw), x);
}

// base + eight elements of a table's or a parameter's row; an absent table is zeros.
__device__ __forceinline__ void read_eight(const Matrix& m, std::int64_t row, std::int64_t c,
                                           float base, float* x) {
  if (!m.data) {
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = base;
    return;
  }
  const std::int64_t at = row * m.step + c;
  float e[8];
  if (m.dtype == DType::f32) {
    load8(static_cast<const float*>(m.data) + at, e);
  } else if (m.dtype == DType::bf16) {
    load8(static_cast<const bf16*>(m.data) + at, e);
  } else {
    load8(static_cast<const f16*>(m.data) + at, e);
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) x[i] = base + e[i];
}

inline bool absent_or_in_eights(const View& v) { return !v || in_eights(v); }

// ---- a row in the registers of a block
//
// A row of 16 T elements belongs to a block of T threads (whole warps): thread t holds the eights t
// and T + t, so that neighbours read neighbouring 16 bytes. These are the widths of the models;
// other widths go element by element.

// Rows are counted in eights from the start of the matrix, in 32 bits: addresses in 64 bits would
// take registers that the rows need.
template <class E, int T>
struct RowShare {
  Eight<E> low, high;
  __device__ __forceinline__ void load(const E* m, int row) {
    const auto* p = reinterpret_cast<const Eight<E>*>(m) + row + threadIdx.x;
    low.load(reinterpret_cast<const E*>(p));
    high.load(reinterpret_cast<const E*>(p + T));
  }
  __device__ __forceinline__ void load_once(const E* m, int row) {
    const auto* p = reinterpret_cast<const Eight<E>*>(m) + row + threadIdx.x;
    low.load_once(reinterpret_cast<const E*>(p));
    high.load_once(reinterpret_cast<const E*>(p + T));
  }
  __device__ __forceinline__ void forget_unpacked() {
    low.forget_unpacked();
    high.forget_unpacked();
  }
  __device__ __forceinline__ void store(E* m, int row) const {
    auto* p = reinterpret_cast<Eight<E>*>(m) + row + threadIdx.x;
    p[0] = low;
    p[T] = high;
  }
  __device__ __forceinline__ void unpack(float (&x)[16]) const {
    low.unpack(x);
    high.unpack(x + 8);
  }
};
template <int T, class E>
__device__ __forceinline__ void store_share(E* m, int row, const float (&x)[16]) {
  auto* p = reinterpret_cast<Eight<E>*>(m) + row + threadIdx.x;
  store_eight(reinterpret_cast<E*>(p), x);
  store_eight(reinterpret_cast<E*>(p + T), x + 8);
}
inline bool in_row_eights(const View& v) {
  return in_eights(v) && v.shape[0] * v.strides[0] / 8 <= std::int64_t{0x7fffffff};
}
// Elements from row to row as a number of eights.
__device__ __forceinline__ int eights(const Matrix& m) { return static_cast<int>(m.step / 8); }

template <int T>
__device__ __forceinline__ void read_share(const Matrix& m, std::int64_t row, float base,
                                           float (&x)[16]) {
  read_eight(m, row, threadIdx.x * 8, base, x);
  read_eight(m, row, (threadIdx.x + T) * 8, base, x + 8);
}

// Calls f(integral constant T) and returns true where rows of this width are held by blocks of T.
template <class F>
bool with_row_block(std::int64_t width, F&& f) {
  switch (width) {
    case 5120:
      return f(std::integral_constant<int, 320>()), true;
    case 3072:
      return f(std::integral_constant<int, 192>()), true;
    case 1536:
      return f(std::integral_constant<int, 96>()), true;
    default:
      return false;
  }
}

constexpr int kWarpsAtOnce = 2;  // all at once would take 20 registers more

// Two sums over the block's T threads, the same in every thread. One barrier: the caller alternates
// `part` between two arrays of T / 32, so that a warp that is ahead does not write where others
// read.
template <int T>
__device__ __forceinline__ float2 block_sums(float a, float b, float2* part) {
  a = warp_sum(a);
  b = warp_sum(b);
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = make_float2(a, b);
  __syncthreads();
  float2 sum = {0, 0};
#pragma unroll kWarpsAtOnce
  for (int w = 0; w < T / 32; ++w) {
    const float2 p = part[w];
    sum.x += p.x;
    sum.y += p.y;
  }
  return sum;
}

// ---- launches

inline unsigned multiprocessors() {
  static const int count = [] {
    int device = 0, n = 0;
    check_cuda(cudaGetDevice(&device), "asking for the current GPU");
    check_cuda(cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, device),
               "counting multiprocessors");
    return n;
  }();
  return static_cast<unsigned>(count);
}
// Blocks that stay and walk through the rows: so many per multiprocessor.
inline unsigned row_blocks(std::int64_t rows, unsigned per_multiprocessor) {
  const std::int64_t most = std::int64_t{multiprocessors()} * per_multiprocessor;
  return static_cast<unsigned>(rows < most ? rows : most);
}

// Element-wise kernels in eights: thread x of a block owns eight columns and takes eight rows, two
// of them at a time. 128 threads divide the models' widths best. Blocks are short: were they to
// stay, one block more than fit at once would walk through all its rows alone at the end.
constexpr int kColumnThreads = 128;
inline dim3 column_grid(std::int64_t rows, std::int64_t columns) {
  const std::int64_t y = (rows + 7) / 8;
  return dim3(blocks_for(columns / 8, kColumnThreads),
              static_cast<unsigned>(y < 65535 ? y : 65535));
}

// ---- sums over rows

// sums[t, c] += sum of term(r, c) over the rows with index t, quantum by quantum: an eighth of its
// rows in order from zero, the eighths in order, the quanta in order. A block owns 32 columns of
// one t; its warps sum the eighths of four quanta at a time, eight rows in flight each, and the
// first adds them up in order.
constexpr int kQuantaAtOnce = 4, kSumWarps = kQuantaAtOnce * kEighths;
template <class Term>
__global__ void __launch_bounds__(32 * kSumWarps)
    column_sums(Term term, const std::int32_t* index, std::int64_t rows, std::int64_t columns,
                float* sums, std::int64_t sums_step) {
  __shared__ float part[kSumWarps][32];
  constexpr int kRows = 8;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, t = blockIdx.y;
  const std::int64_t c = std::int64_t{blockIdx.x} * 32 + lane;
  const bool mine = c < columns;
  float* out = sums + t * sums_step + c;
  float total = mine && warp == 0 ? *out : 0;
  for (std::int64_t first = 0; first < rows; first += kQuantaAtOnce * kTokenQuantum) {
    const std::int64_t begin = first + warp * kEighthRows;
    const std::int64_t end = begin + kEighthRows < rows ? begin + kEighthRows : rows;
    float sum = 0;
    for (std::int64_t r = begin; mine && r < end; r += kRows) {
      float e[kRows];
#pragma unroll
      for (int k = 0; k < kRows; ++k) {
        const bool wanted = r + k < end && table_row(index, r + k) == t;
        e[k] = wanted ? term(r + k, c) : 0;
      }
#pragma unroll
      for (int k = 0; k < kRows; ++k) sum += e[k];
    }
    part[warp][lane] = sum;
    __syncthreads();
    if (warp == 0) {
#pragma unroll
      for (int q = 0; q < kSumWarps; q += kEighths) {
        float quantum = 0;
#pragma unroll
        for (int e = 0; e < kEighths; ++e) quantum += part[q + e][lane];
        total += quantum;
      }
    }
    __syncthreads();
  }
  if (mine && warp == 0) *out = total;
}

template <class Term>
void add_column_sums(const Term& term, const View& index, std::int64_t rows, const View& sums,
                     cudaStream_t stream) {
  const std::int64_t tables = sums.rank > 1 ? sums.shape[0] : 1,
                     columns = sums.shape[sums.rank - 1];
  if (rows == 0 || tables == 0 || columns == 0) return;
  const dim3 grid(blocks_for(columns, 32), static_cast<unsigned>(tables));
  column_sums<<<grid, 32 * kSumWarps, 0, stream>>>(
      term, static_cast<const std::int32_t*>(index.data), rows, columns,
      static_cast<float*>(sums.data), sums.rank > 1 ? sums.strides[0] : 0);
}

}  // namespace ballast::ops::cuda
