#include "ops/kernels/column_sums.cuh"
#include "ops/layer_norm_cuda.h"
#include "ops/layer_norm_kernel.cuh"

namespace ballast::ops::cuda {
namespace {

constexpr int kThreads = 256;  // of a block that goes through rows element by element

// What the kernels read and write. f = base + mul, an absent mul being zeros.
struct Forward {
  Matrix x, mul, add;
  const std::int32_t* index;
  float base;
  Matrix y;
  float* stats;
  std::int64_t stats_step, rows, columns;
  float eps;
};
struct Backward {
  Matrix x, mul;
  const float* stats;
  std::int64_t stats_step;
  const std::int32_t* index;
  float base;
  Matrix dy, dx;
  bool accumulate;
  std::int64_t rows, columns;
};

// A block takes row after row, element by element, for any dtypes, widths and strides: the mean,
// the variance from the differences to it, the result; the second and third look find the row in
// the first-level cache.
__global__ void __launch_bounds__(kThreads) forward_any(Forward a) {
  __shared__ float scratch[32];
  const float inverse_width = 1.0f / static_cast<float>(a.columns);
  for (std::int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    float sum = 0;
    for (std::int64_t c = threadIdx.x; c < a.columns; c += kThreads) sum += read(a.x, row, c);
    const float mean = row_sum(sum, scratch) * inverse_width;
    float squares = 0;
    for (std::int64_t c = threadIdx.x; c < a.columns; c += kThreads) {
      const float d = read(a.x, row, c) - mean;
      squares += d * d;
    }
    const float rstd = __frsqrt_rn(row_sum(squares, scratch) * inverse_width + a.eps);
    if (threadIdx.x == 0) {
      a.stats[row * a.stats_step] = mean;
      a.stats[row * a.stats_step + 1] = rstd;
    }
    const int t = table_row(a.index, row);
    for (std::int64_t c = threadIdx.x; c < a.columns; c += kThreads) {
      const float f = a.mul.data ? a.base + read(a.mul, t, c) : a.base;
      const float shift = a.add.data ? read(a.add, t, c) : 0;
      write(a.y, row, c, (read(a.x, row, c) - mean) * rstd * f + shift);
    }
  }
}

__global__ void __launch_bounds__(kThreads) backward_any(Backward a) {
  __shared__ float scratch[32];
  const float inverse_width = 1.0f / static_cast<float>(a.columns);
  for (std::int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const float mean = a.stats[row * a.stats_step], rstd = a.stats[row * a.stats_step + 1];
    const int t = table_row(a.index, row);
    const auto g_at = [&](std::int64_t c) {  // rounded, so that g - mean(g) vanishes in one column
      return __fmul_rn(read(a.dy, row, c), a.mul.data ? a.base + read(a.mul, t, c) : a.base);
    };
    const auto xhat_at = [&](std::int64_t c) { return (read(a.x, row, c) - mean) * rstd; };
    float g_sum = 0, gx_sum = 0;
    for (std::int64_t c = threadIdx.x; c < a.columns; c += kThreads) {
      const float g = g_at(c);
      g_sum += g;
      gx_sum += g * xhat_at(c);
    }
    const float g_mean = row_sum(g_sum, scratch) * inverse_width;
    const float gx_mean = row_sum(gx_sum, scratch) * inverse_width;
    for (std::int64_t c = threadIdx.x; c < a.columns; c += kThreads) {
      const float dx = (g_at(c) - g_mean - xhat_at(c) * gx_mean) * rstd;
      write(a.dx, row, c, a.accumulate ? read(a.dx, row, c) + dx : dx);
    }
  }
}

// A block stays and takes every gridDim.x-th row; a thread keeps 16 columns of the current table
// row in registers (reading the tables from the second-level cache for every row costs 2.6 times
// the time) and loads its part of the next row before this one is reduced. Registers decide how
// many blocks fit on a multiprocessor.
template <int T, class X>
constexpr int kForwardBlocks = sizeof(X) == 2 ? (T == 320 ? 3 : 768 / T) : (T == 320 ? 2 : 576 / T);

template <int T, class X>
__global__ void __launch_bounds__(T, kForwardBlocks<T, X>) forward_row(Forward a) {
  __shared__ float2 part[2][T / 32];
  const X* const x = static_cast<const X*>(a.x.data);
  bf16* const y = static_cast<bf16*>(a.y.data);
  const int x_step = eights(a.x), y_step = eights(a.y);
  const int rows = static_cast<int>(a.rows), step = gridDim.x;
  float f[16], shift[16];
  int held = -1, parity = 0, row = blockIdx.x;
  RowShare<X, T> next;
  next.load(x, row * x_step);
  int next_table = table_row(a.index, row);
  for (; row < rows; row += step, parity ^= 1) {
    RowShare<X, T> now = next;
    const int table = next_table;
    if (table != held) {
      read_share<T>(a.mul, table, a.base, f);
      read_share<T>(a.add, table, 0, shift);
      held = table;
    }
    if (row + step < rows) {
      next.load(x, (row + step) * x_step);
      next_table = table_row(a.index, row + step);
    }
    const Moments m = row_moments(now, part[parity]);
    const float rstd = __frsqrt_rn(m.m2 * (1.0f / (16 * T)) + a.eps);
    if (threadIdx.x == 0) {
      a.stats[row * a.stats_step] = m.mean;
      a.stats[row * a.stats_step + 1] = rstd;
    }
    float e[16];
    now.unpack(e);
#pragma unroll
    for (int i = 0; i < 16; ++i) e[i] = (e[i] - m.mean) * rstd * f[i] + shift[i];
    store_share<T>(y, row * y_step, e);
  }
}

// The same shape. Of dx the old row is loaded when its turn comes, in time for the end of the
// reduction.
template <int T>
constexpr int kBackwardBlocks = T == 320 ? 2 : 576 / T;

template <int T, class X>
__global__ void __launch_bounds__(T, kBackwardBlocks<T>) backward_row(Backward a) {
  __shared__ float2 part[2][T / 32];
  const X* const x = static_cast<const X*>(a.x.data);
  const bf16* const dy = static_cast<const bf16*>(a.dy.data);
  X* const dx = static_cast<X*>(a.dx.data);
  const int x_step = eights(a.x), dy_step = eights(a.dy), dx_step = eights(a.dx);
  const int rows = static_cast<int>(a.rows), step = gridDim.x;
  float f[16];
  int held = -1, next_table = 0, parity = 0, row = blockIdx.x;
  RowShare<X, T> next_x, old;
  RowShare<bf16, T> next_dy;
  float next_mean = 0, next_rstd = 0;
  const auto load = [&](int r) {
    next_dy.load_once(dy, r * dy_step);
    next_x.load_once(x, r * x_step);
    next_table = table_row(a.index, r);
    next_mean = a.stats[r * a.stats_step];
    next_rstd = a.stats[r * a.stats_step + 1];
  };
  load(row);
  for (; row < rows; row += step, parity ^= 1) {
    RowShare<X, T> now_x = next_x;
    RowShare<bf16, T> now_dy = next_dy;
    const float mean = next_mean, rstd = next_rstd;
    const int table = next_table;
    if (a.accumulate) old.load(dx, row * dx_step);
    if (row + step < rows) load(row + step);
    if (table != held) {
      read_share<T>(a.mul, table, a.base, f);
      held = table;
    }
    float g[16], e[16], g_sum = 0, gx_sum = 0;
    now_dy.unpack(g);
    now_x.unpack(e);
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      g_sum += g[i] * f[i];
      gx_sum += g[i] * f[i] * ((e[i] - mean) * rstd);
    }
    const float2 sums = block_sums<T>(g_sum, gx_sum, part[parity]);
    const float g_mean = sums.x * (1.0f / (16 * T)), gx_mean = sums.y * (1.0f / (16 * T));
    float out[16];
#pragma unroll
    for (int i = 0; i < 16; ++i) out[i] = 0;
    if (a.accumulate) old.unpack(out);
    now_dy.forget_unpacked();
    now_dy.unpack(g);
    now_x.forget_unpacked();
    now_x.unpack(e);
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      out[i] += (g[i] * f[i] - g_mean - (e[i] - mean) * rstd * gx_mean) * rstd;
    }
    store_share<T>(dx, row * dx_step, out);
  }
}

// Terms of the sums over rows.
template <class X, class Dy>
struct MulTerm {
  const X* x;
  std::int64_t x_step;
  const Dy* dy;
  std::int64_t dy_step;
  const float* stats;
  std::int64_t stats_step;

  static __device__ __forceinline__ float of(float x, float dy, float mean, float rstd) {
    return __fmul_rn(dy, __fmul_rn(__fsub_rn(x, mean), rstd));
  }
  __device__ __forceinline__ float operator()(std::int64_t r, std::int64_t c) const {
    return of(to_float(x[r * x_step + c]), to_float(dy[r * dy_step + c]), stats[r * stats_step],
              stats[r * stats_step + 1]);
  }

  struct Row {
    Eight<X> x;
    Eight<Dy> dy;
    float mean, rstd;
    __device__ __forceinline__ void load(const MulTerm& t, std::int64_t r, std::int64_t c) {
      x.load(t.x + r * t.x_step + c);
      dy.load(t.dy + r * t.dy_step + c);
      mean = t.stats[r * t.stats_step];
      rstd = t.stats[r * t.stats_step + 1];
    }
    __device__ __forceinline__ void add(float (&sums)[8]) const {
      float a[8], b[8];
      x.unpack(a);
      dy.unpack(b);
#pragma unroll
      for (int i = 0; i < 8; ++i) sums[i] += of(a[i], b[i], mean, rstd);
    }
  };
};
template <class Dy>
struct AddTerm {
  const Dy* dy;
  std::int64_t dy_step;
  __device__ __forceinline__ float operator()(std::int64_t r, std::int64_t c) const {
    return to_float(dy[r * dy_step + c]);
  }
  struct Row {
    Eight<Dy> dy;
    __device__ __forceinline__ void load(const AddTerm& t, std::int64_t r, std::int64_t c) {
      dy.load(t.dy + r * t.dy_step + c);
    }
    __device__ __forceinline__ void add(float (&sums)[8]) const {
      float b[8];
      dy.unpack(b);
#pragma unroll
      for (int i = 0; i < 8; ++i) sums[i] += b[i];
    }
  };
};

}  // namespace

void layer_norm(const LayerNorm& a, void* stream) {
  const std::int64_t rows = a.x.shape[0], columns = a.x.shape[1];
  if (rows == 0) return;
  const Forward k = {matrix(a.x),
                     matrix(a.mul),
                     matrix(a.add),
                     static_cast<const std::int32_t*>(a.index.data),
                     base_of(a.mul, a.one_plus),
                     matrix(a.y),
                     static_cast<float*>(a.stats.data),
                     a.stats.strides[0],
                     rows,
                     columns,
                     a.eps};
  const bool eights = a.y.dtype == DType::bf16 && in_row_eights(a.x) && in_row_eights(a.y) &&
                      absent_or_in_eights(a.mul) && absent_or_in_eights(a.add);
  const bool launched =
      eights && with_row_block(columns, [&](auto threads) {
        constexpr int T = decltype(threads)::value;
        with_activation(a.x.dtype, [&](auto x) {
          using X = typename decltype(x)::type;
          forward_row<T, X><<<row_blocks(rows, kForwardBlocks<T, X>), T, 0, stream_of(stream)>>>(k);
        });
      });
  if (!launched) forward_any<<<row_blocks(rows, 8), kThreads, 0, stream_of(stream)>>>(k);
  check_launch("layer_norm");
}

void layer_norm_backward(const LayerNormBackward& a, void* stream) {
  const std::int64_t rows = a.x.shape[0], columns = a.x.shape[1];
  if (rows == 0) return;
  const auto* stats = static_cast<const float*>(a.stats.data);
  // The sums come before dx, which may overwrite dy.
  with_activation(a.dy.dtype, [&](auto dy) {
    using Dy = typename decltype(dy)::type;
    const auto* from = static_cast<const Dy*>(a.dy.data);
    if (a.dmul) {
      with_activation(a.x.dtype, [&](auto x) {
        using X = typename decltype(x)::type;
        add_table_sums(MulTerm<X, Dy>{static_cast<const X*>(a.x.data), a.x.strides[0], from,
                                      a.dy.strides[0], stats, a.stats.strides[0]},
                       in_eights(a.x) && in_eights(a.dy), a.index, rows, a.dmul, a.scratch,
                       stream_of(stream));
      });
    }
    if (a.dadd) {
      add_table_sums(AddTerm<Dy>{from, a.dy.strides[0]}, in_eights(a.dy), a.index, rows, a.dadd,
                     a.scratch, stream_of(stream));
    }
  });
  const Backward k = {matrix(a.x),
                      matrix(a.mul),
                      stats,
                      a.stats.strides[0],
                      static_cast<const std::int32_t*>(a.index.data),
                      base_of(a.mul, a.one_plus),
                      matrix(a.dy),
                      matrix(a.dx),
                      a.accumulate,
                      rows,
                      columns};
  const bool eights = a.dy.dtype == DType::bf16 && a.dx.dtype == a.x.dtype && in_row_eights(a.x) &&
                      in_row_eights(a.dy) && in_row_eights(a.dx) && absent_or_in_eights(a.mul);
  const bool launched =
      eights && with_row_block(columns, [&](auto threads) {
        constexpr int T = decltype(threads)::value;
        with_activation(a.x.dtype, [&](auto x) {
          using X = typename decltype(x)::type;
          backward_row<T, X><<<row_blocks(rows, kBackwardBlocks<T>), T, 0, stream_of(stream)>>>(k);
        });
      });
  if (!launched) backward_any<<<row_blocks(rows, 8), kThreads, 0, stream_of(stream)>>>(k);
  check_launch("layer_norm_backward");
}

}  // namespace ballast::ops::cuda
