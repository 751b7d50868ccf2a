#include "ops/kernels/column_sums.cuh"
#include "ops/kernels/row_kernel.cuh"
#include "ops/rms_norm_cuda.h"
#include "ops/rope_kernel.cuh"
#include "ops/silu_kernel.cuh"

namespace ballast::ops::cuda {
namespace {

constexpr int kThreads = 256;  // of a block that goes through rows element by element

// (cos, sin) of the pairs of a head, the same for all heads of a row.
struct CosSin {
  const float* data;
  int step, head;  // floats from row to row and of a row
};
CosSin cos_sin_of(const View& v) {
  if (!v) return {nullptr, 0, 8};
  return {static_cast<const float*>(v.data), static_cast<int>(v.strides[0]),
          static_cast<int>(2 * v.shape[1])};
}

struct Forward {
  Matrix x, w, y;
  float* r;
  std::int64_t rows, columns;
  float eps;
  CosSin cos_sin;
};
struct Backward {
  Matrix x, w, dy, dx;
  const float* r;
  std::int64_t rows, columns;
  CosSin cos_sin;
};

// Sixteen columns of a row, rounded to bf16 and then turned: both eights of a thread stand at the
// same place of a head.
__device__ __forceinline__ void rotate_share(float (&x)[16], const float (&cos_sin)[8]) {
#pragma unroll
  for (int i = 0; i < 16; ++i) x[i] = to_float(from_float<bf16>(x[i]));
  rotate_eight(x, cos_sin, 1.0f);
  rotate_eight(x + 8, cos_sin, 1.0f);
}
// Turned back and then rounded to bf16.
__device__ __forceinline__ void rotate_back_share(float (&x)[16], const float (&cos_sin)[8]) {
  rotate_eight(x, cos_sin, -1.0f);
  rotate_eight(x + 8, cos_sin, -1.0f);
#pragma unroll
  for (int i = 0; i < 16; ++i) x[i] = to_float(from_float<bf16>(x[i]));
}

// A block takes row after row, element by element, for any dtypes, widths and strides; the second
// look finds the row in the first-level cache.
__global__ void __launch_bounds__(kThreads) forward_any(Forward a) {
  __shared__ float scratch[32];
  for (std::int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    float squares = 0;
    for (std::int64_t c = threadIdx.x; c < a.columns; c += kThreads) {
      const float e = read(a.x, row, c);
      squares += e * e;
    }
    const float r = __frsqrt_rn(row_sum(squares, scratch) / static_cast<float>(a.columns) + a.eps);
    if (threadIdx.x == 0) a.r[row] = r;
    for (std::int64_t c = threadIdx.x; c < a.columns; c += kThreads) {
      write(a.y, row, c, read(a.x, row, c) * r * read(a.w, 0, c));
    }
  }
}

__global__ void __launch_bounds__(kThreads) backward_any(Backward a) {
  __shared__ float scratch[32];
  for (std::int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    float gx = 0;
    for (std::int64_t c = threadIdx.x; c < a.columns; c += kThreads) {
      gx += read(a.dy, row, c) * read(a.w, 0, c) * read(a.x, row, c);
    }
    const float r = a.r[row];
    const float along_x = r * r * r * (row_sum(gx, scratch) / static_cast<float>(a.columns));
    for (std::int64_t c = threadIdx.x; c < a.columns; c += kThreads) {
      const float g = read(a.dy, row, c) * read(a.w, 0, c);
      write(a.dx, row, c, g * r - read(a.x, row, c) * along_x);
    }
  }
}

// The same for rows of which a block would be mostly idle: a warp takes one.
constexpr int kWarps = kThreads / 32;
__global__ void __launch_bounds__(kThreads) forward_in_warps(Forward a) {
  const int lane = threadIdx.x % 32;
  for (std::int64_t row = blockIdx.x * std::int64_t{kWarps} + threadIdx.x / 32; row < a.rows;
       row += gridDim.x * std::int64_t{kWarps}) {
    float squares = 0;
    for (std::int64_t c = lane; c < a.columns; c += 32) {
      const float e = read(a.x, row, c);
      squares += e * e;
    }
    const float r = __frsqrt_rn(warp_sum(squares) / static_cast<float>(a.columns) + a.eps);
    if (lane == 0) a.r[row] = r;
    for (std::int64_t c = lane; c < a.columns; c += 32) {
      write(a.y, row, c, read(a.x, row, c) * r * read(a.w, 0, c));
    }
  }
}

__global__ void __launch_bounds__(kThreads) backward_in_warps(Backward a) {
  const int lane = threadIdx.x % 32;
  for (std::int64_t row = blockIdx.x * std::int64_t{kWarps} + threadIdx.x / 32; row < a.rows;
       row += gridDim.x * std::int64_t{kWarps}) {
    float gx = 0;
    for (std::int64_t c = lane; c < a.columns; c += 32) {
      gx += read(a.dy, row, c) * read(a.w, 0, c) * read(a.x, row, c);
    }
    const float r = a.r[row];
    const float along_x = r * r * r * (warp_sum(gx) / static_cast<float>(a.columns));
    for (std::int64_t c = lane; c < a.columns; c += 32) {
      const float g = read(a.dy, row, c) * read(a.w, 0, c);
      write(a.dx, row, c, g * r - read(a.x, row, c) * along_x);
    }
  }
}

// Narrow rows, the pixels of a video decoder: half a warp or a whole one takes a row (kLanes
// threads, each with up to kShare times eight columns), so that nothing waits for a block. Threads
// keep their columns of w from row to row.
constexpr int kNarrow = 1024;

template <int kLanes, int kShare, bool kSilu>
__global__ void __launch_bounds__(kThreads) forward_narrow(Forward a) {
  constexpr int kRows = 32 / kLanes;  // of a warp at once
  const int lane = threadIdx.x % kLanes, columns = static_cast<int>(a.columns);
  const std::int64_t warp = (blockIdx.x * std::int64_t{kThreads} + threadIdx.x) / 32;
  const std::int64_t step = gridDim.x * std::int64_t{kThreads / 32} * kRows;
  const bf16* const x = static_cast<const bf16*>(a.x.data);
  bf16* const y = static_cast<bf16*>(a.y.data);
  float w[kShare][8];
#pragma unroll
  for (int s = 0; s < kShare; ++s) {
    const int c = (s * kLanes + lane) * 8;
#pragma unroll
    for (int i = 0; i < 8; ++i) w[s][i] = c < columns ? read(a.w, 0, c + i) : 0.0f;
  }
  for (std::int64_t first = warp * kRows; first < a.rows; first += step) {  // alike in all lanes
    const std::int64_t row = first + threadIdx.x % 32 / kLanes;
    const bool mine = row < a.rows;
    float e[kShare][8], squares = 0;
#pragma unroll
    for (int s = 0; s < kShare; ++s) {
      const int c = (s * kLanes + lane) * 8;
      if (!mine || c >= columns) continue;
      load8(x + row * a.x.step + c, e[s]);
#pragma unroll
      for (int i = 0; i < 8; ++i) squares += e[s][i] * e[s][i];
    }
#pragma unroll
    for (int o = kLanes / 2; o > 0; o >>= 1) squares += __shfl_xor_sync(0xffffffffu, squares, o);
    const float r = __frsqrt_rn(squares / static_cast<float>(columns) + a.eps);
    if (mine && lane == 0) a.r[row] = r;
#pragma unroll
    for (int s = 0; s < kShare; ++s) {
      const int c = (s * kLanes + lane) * 8;
      if (!mine || c >= columns) continue;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        e[s][i] = e[s][i] * r * w[s][i];
        if constexpr (kSilu) e[s][i] = silu_of(to_float(from_float<bf16>(e[s][i])));
      }
      store8(y + row * a.y.step + c, e[s]);
    }
  }
}

// A block stays and takes every gridDim.x-th row; a thread keeps its 16 columns of w in registers
// and loads its part of the next row before this one is reduced. Registers decide how many blocks
// fit on a multiprocessor. q, k and their gradients are bf16 where speed matters. Turning them here
// saves reading and writing them once more.
template <int T>
constexpr int kForwardBlocks = T == 320 ? 3 : 768 / T;

template <int T, bool kRotate>
__global__ void __launch_bounds__(T, kForwardBlocks<T>) forward_row(Forward a) {
  __shared__ float2 part[2][T / 32];
  const bf16* const x = static_cast<const bf16*>(a.x.data);
  bf16* const y = static_cast<bf16*>(a.y.data);
  const int rows = static_cast<int>(a.rows), step = gridDim.x;
  const int x_step = eights(a.x), y_step = eights(a.y);
  float w[16];
  read_share<T>(a.w, 0, 0, w);
  int parity = 0, row = blockIdx.x;
  const int cos_sin_at = static_cast<int>(threadIdx.x) * 8 % a.cos_sin.head;
  RowShare<bf16, T> next;
  next.load(x, row * x_step);
  for (; row < rows; row += step, parity ^= 1) {
    const RowShare<bf16, T> now = next;
    if (row + step < rows) next.load(x, (row + step) * x_step);
    float cos_sin[8];  // needed after the reduction
    if constexpr (kRotate) load8(a.cos_sin.data + row * a.cos_sin.step + cos_sin_at, cos_sin);
    float e[16], squares = 0;
    now.unpack(e);
#pragma unroll
    for (int i = 0; i < 16; ++i) squares += e[i] * e[i];
    const float sum = block_sums<T>(squares, 0, part[parity]).x;
    const float r = __frsqrt_rn(sum * (1.0f / (16 * T)) + a.eps);
    if (threadIdx.x == 0) a.r[row] = r;
#pragma unroll
    for (int i = 0; i < 16; ++i) e[i] = e[i] * r * w[i];
    if constexpr (kRotate) rotate_share(e, cos_sin);
    store_share<T>(y, row * y_step, e);
  }
}

template <int T>
constexpr int kBackwardBlocks = T == 320 ? 2 : 576 / T;

template <int T, bool kRotate>
__global__ void __launch_bounds__(T, kBackwardBlocks<T>) backward_row(Backward a) {
  __shared__ float2 part[2][T / 32];
  const bf16* const x = static_cast<const bf16*>(a.x.data);
  const bf16* const dy = static_cast<const bf16*>(a.dy.data);
  bf16* const dx = static_cast<bf16*>(a.dx.data);
  const int rows = static_cast<int>(a.rows), step = gridDim.x;
  const int x_step = eights(a.x), dy_step = eights(a.dy), dx_step = eights(a.dx);
  float w[16];
  read_share<T>(a.w, 0, 0, w);
  int parity = 0, row = blockIdx.x;
  RowShare<bf16, T> next_x, next_dy;
  float next_r = 0, next_cos_sin[8];
  const int cos_sin_at = static_cast<int>(threadIdx.x) * 8 % a.cos_sin.head;
  const auto load = [&](int i) {
    next_x.load_once(x, i * x_step);
    next_dy.load(dy, i * dy_step);
    next_r = a.r[i];
    if constexpr (kRotate) load8(a.cos_sin.data + i * a.cos_sin.step + cos_sin_at, next_cos_sin);
  };
  load(row);
  for (; row < rows; row += step, parity ^= 1) {
    float e[16], g[16], gx = 0;
    next_x.unpack(e);
    next_dy.unpack(g);
    if constexpr (kRotate) rotate_back_share(g, next_cos_sin);
    const float r = next_r;
    if (row + step < rows) load(row + step);
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      g[i] *= w[i];
      gx += g[i] * e[i];
    }
    const float sum = block_sums<T>(gx, 0, part[parity]).x;
    const float along_x = r * r * r * (sum * (1.0f / (16 * T)));
#pragma unroll
    for (int i = 0; i < 16; ++i) g[i] = g[i] * r - e[i] * along_x;
    store_share<T>(dx, row * dx_step, g);
  }
}

// dy x r, fused with no sum: alone and in eights it has the same bits.
template <class X, class Dy>
struct WeightTerm {
  const X* x;
  std::int64_t x_step;
  const Dy* dy;
  std::int64_t dy_step;
  const float* r;

  static __device__ __forceinline__ float of(float x, float dy, float r) {
    return __fmul_rn(dy, __fmul_rn(x, r));
  }
  __device__ __forceinline__ float operator()(std::int64_t row, std::int64_t c) const {
    return of(to_float(x[row * x_step + c]), to_float(dy[row * dy_step + c]), r[row]);
  }

  struct Row {
    Eight<X> x;
    Eight<Dy> dy;
    float r;
    __device__ __forceinline__ void load(const WeightTerm& t, std::int64_t row, std::int64_t c) {
      x.load(t.x + row * t.x_step + c);
      dy.load(t.dy + row * t.dy_step + c);
      r = t.r[row];
    }
    __device__ __forceinline__ void add(float (&sums)[8]) const {
      float a[8], b[8];
      x.unpack(a);
      dy.unpack(b);
#pragma unroll
      for (int i = 0; i < 8; ++i) sums[i] += of(a[i], b[i], r);
    }
  };
};

bool is_bf16_row(const View& v) { return v.dtype == DType::bf16 && in_row_eights(v); }

// The widths of the video models, and those of T5 XL and XXL.
template <class F>
bool with_norm_block(std::int64_t width, F&& f) {
  if (width == 2048) return f(std::integral_constant<int, 128>()), true;
  if (width == 4096) return f(std::integral_constant<int, 256>()), true;
  return with_row_block(width, static_cast<F&&>(f));
}

bool in_rows(const RmsNorm& a) {
  return is_bf16_row(a.x) && is_bf16_row(a.y) && in_eights(a.w) &&
         with_norm_block(a.x.shape[1], [](auto) {});
}
bool is_narrow(const RmsNorm& a) {
  return a.x.dtype == DType::bf16 && a.y.dtype == DType::bf16 && in_eights(a.x) && in_eights(a.y) &&
         a.x.shape[1] <= kNarrow && !a.cos_sin;
}
template <bool kSilu>
void launch_narrow(const Forward& k, cudaStream_t stream) {
  const auto launch = [&](auto* kernel, int lanes) {
    kernel<<<some_blocks(k.rows, kThreads / lanes), kThreads, 0, stream>>>(k);
  };
  if (k.columns <= 128) return launch(forward_narrow<16, 1, kSilu>, 16);
  if (k.columns <= 256) return launch(forward_narrow<32, 1, kSilu>, 32);
  if (k.columns <= 512) return launch(forward_narrow<32, 2, kSilu>, 32);
  launch(forward_narrow<32, 4, kSilu>, 32);
}
bool in_rows(const RmsNormBackward& a) {
  return is_bf16_row(a.x) && is_bf16_row(a.dy) && is_bf16_row(a.dx) && in_eights(a.w) &&
         with_norm_block(a.x.shape[1], [](auto) {});
}

// Heads begin at the same column in both halves of a row, and turns are read in eights.
bool cos_sin_fits(const View& cos_sin, std::int64_t columns) {
  const std::int64_t head = 2 * cos_sin.shape[1];
  return head % 8 == 0 && columns / 2 % head == 0 && cos_sin.strides[0] % 4 == 0 &&
         reinterpret_cast<std::uintptr_t>(cos_sin.data) % 16 == 0 &&
         cos_sin.shape[0] * cos_sin.strides[0] <= std::int64_t{0x7fffffff};
}

}  // namespace

bool rotates_in_one_kernel(const RmsNorm& a) {
  return in_rows(a) && cos_sin_fits(a.cos_sin, a.x.shape[1]);
}
bool silu_in_one_kernel(const RmsNorm& a) { return !in_rows(a) && is_narrow(a); }
// The sums of dw read dy as it is in memory: it must be turned there.
bool rotates_in_one_kernel(const RmsNormBackward& a) {
  return !a.dw && in_rows(a) && cos_sin_fits(a.cos_sin, a.x.shape[1]);
}

void rms_norm(const RmsNorm& a, void* stream) {
  const std::int64_t rows = a.x.shape[0], columns = a.x.shape[1];
  if (rows == 0) return;
  const Forward k = {matrix(a.x), matrix(a.w), matrix(a.y), static_cast<float*>(a.r.data),
                     rows,        columns,     a.eps,       cos_sin_of(a.cos_sin)};
  const bool launched = in_rows(a) && with_norm_block(columns, [&](auto threads) {
                          constexpr int T = decltype(threads)::value;
                          const unsigned blocks = row_blocks(rows, kForwardBlocks<T>);
                          if (a.cos_sin) {
                            forward_row<T, true><<<blocks, T, 0, stream_of(stream)>>>(k);
                          } else {
                            forward_row<T, false><<<blocks, T, 0, stream_of(stream)>>>(k);
                          }
                        });
  if (!launched && is_narrow(a)) {
    a.silu ? launch_narrow<true>(k, stream_of(stream)) : launch_narrow<false>(k, stream_of(stream));
  } else if (!launched && columns <= kNarrow) {
    forward_in_warps<<<some_blocks(rows, kWarps), kThreads, 0, stream_of(stream)>>>(k);
  } else if (!launched) {
    forward_any<<<row_blocks(rows, 8), kThreads, 0, stream_of(stream)>>>(k);
  }
  check_launch("rms_norm");
}

void rms_norm_backward(const RmsNormBackward& a, void* stream) {
  const std::int64_t rows = a.x.shape[0], columns = a.x.shape[1];
  if (rows == 0) return;
  const auto* r = static_cast<const float*>(a.r.data);
  if (a.dw) {  // before dx, which may overwrite dy
    with_activation(a.x.dtype, [&](auto x) {
      with_activation(a.dy.dtype, [&](auto dy) {
        using X = typename decltype(x)::type;
        using Dy = typename decltype(dy)::type;
        const WeightTerm<X, Dy> term = {static_cast<const X*>(a.x.data), a.x.strides[0],
                                        static_cast<const Dy*>(a.dy.data), a.dy.strides[0], r};
        if (in_eights(a.x) && in_eights(a.dy) && rows_in_column_scratch(columns) > 0) {
          add_column_eights(term, rows, columns, static_cast<float*>(a.dw.data), a.scratch,
                            stream_of(stream));
        } else {
          add_column_sums(term, View(), rows, a.dw, stream_of(stream));
        }
      });
    });
  }
  const Backward k = {matrix(a.x), matrix(a.w), matrix(a.dy), matrix(a.dx),
                      r,           rows,        columns,      cos_sin_of(a.cos_sin)};
  const bool launched = in_rows(a) && with_norm_block(columns, [&](auto threads) {
                          constexpr int T = decltype(threads)::value;
                          const unsigned blocks = row_blocks(rows, kBackwardBlocks<T>);
                          if (a.cos_sin) {
                            backward_row<T, true><<<blocks, T, 0, stream_of(stream)>>>(k);
                          } else {
                            backward_row<T, false><<<blocks, T, 0, stream_of(stream)>>>(k);
                          }
                        });
  if (!launched && columns <= kNarrow) {
    backward_in_warps<<<some_blocks(rows, kWarps), kThreads, 0, stream_of(stream)>>>(k);
  } else if (!launched) {
    backward_any<<<row_blocks(rows, 8), kThreads, 0, stream_of(stream)>>>(k);
  }
  check_launch("rms_norm_backward");
}

}  // namespace ballast::ops::cuda
