#include "ops/layer_norm_kernel.cuh"
#include "ops/residual_norm_cuda.h"

namespace ballast::ops::cuda {
namespace {

// f = base + mul, an absent mul being zeros.
struct Operands {
  Matrix x, y, gate;
  const std::int32_t* gate_index;
  Matrix out, mul, add;
  const std::int32_t* index;
  float base;
  Matrix z;
  float* stats;
  std::int64_t stats_step, rows;
  float eps;
};

// A block stays and takes every gridDim.x-th row, as in layer_norm: a thread keeps 16 columns of
// the norm's tables in registers, those of the gate in shared memory (where it alone reads them),
// and loads its part of the next x and y before this row is reduced. Registers leave room for two
// blocks of 320 threads.
template <int T>
constexpr int kBlocks = T == 320 ? 2 : 576 / T;

template <int T, class X, bool kGate>
__global__ void __launch_bounds__(T, kBlocks<T>) residual_norm_row(Operands a) {
  __shared__ float2 part[2][T / 32];
  __shared__ float4 gate[kGate ? 4 : 1][T];
  const X* const x = static_cast<const X*>(a.x.data);
  const bf16* const y = static_cast<const bf16*>(a.y.data);
  X* const out = static_cast<X*>(a.out.data);
  bf16* const z = static_cast<bf16*>(a.z.data);
  const int x_step = eights(a.x), y_step = eights(a.y), out_step = eights(a.out);
  const int z_step = eights(a.z), rows = static_cast<int>(a.rows), step = gridDim.x;
  float f[16], shift[16];
  int gate_held = -1, held = -1, next_gate = 0, next_table = 0, parity = 0, row = blockIdx.x;
  RowShare<X, T> next_x;
  RowShare<bf16, T> next_y;
  const auto load = [&](int r) {
    next_x.load_once(x, r * x_step);
    next_y.load_once(y, r * y_step);
    if constexpr (kGate) next_gate = table_row(a.gate_index, r);
    next_table = table_row(a.index, r);
  };
  load(row);
  for (; row < rows; row += step, parity ^= 1) {
    const int table = next_table;
    if (kGate && next_gate != gate_held) {
      gate_held = next_gate;
      float g[16];
      read_share<T>(a.gate, gate_held, 0, g);
#pragma unroll
      for (int k = 0; k < (kGate ? 4 : 1); ++k) {
        gate[k][threadIdx.x] = make_float4(g[4 * k], g[4 * k + 1], g[4 * k + 2], g[4 * k + 3]);
      }
    }
    if (table != held) {
      read_share<T>(a.mul, table, a.base, f);
      read_share<T>(a.add, table, 0, shift);
      held = table;
    }
    RowShare<X, T> now;
    const auto add = [&](const Eight<X>& from, const Eight<bf16>& by, int half, Eight<X>& to) {
      float e[8], sum[8];
      by.unpack(e);
      from.unpack(sum);
      if constexpr (kGate) {
        const float4 g = gate[2 * half][threadIdx.x], h = gate[2 * half + 1][threadIdx.x];
        const float by_column[8] = {g.x, g.y, g.z, g.w, h.x, h.y, h.z, h.w};
#pragma unroll
        for (int i = 0; i < 8; ++i) sum[i] = sum[i] + e[i] * by_column[i];
      } else {
#pragma unroll
        for (int i = 0; i < 8; ++i) sum[i] = sum[i] + e[i];
      }
      pack_eight(to, sum);
    };
    add(next_x.low, next_y.low, 0, now.low);
    add(next_x.high, next_y.high, 1, now.high);
    if (row + step < rows) load(row + step);
    now.store(out, row * out_step);
    now.forget_unpacked();
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
    store_share<T>(z, row * z_step, e);
  }
}

const std::int32_t* indices(const View& v) { return static_cast<const std::int32_t*>(v.data); }

}  // namespace

bool in_one_kernel(const ResidualNorm& a) {
  const bool fits = a.y.dtype == DType::bf16 && a.z.dtype == DType::bf16 &&
                    a.x.dtype == a.out.dtype && in_row_eights(a.x) && in_row_eights(a.y) &&
                    in_row_eights(a.out) && in_row_eights(a.z) && absent_or_in_eights(a.gate) &&
                    absent_or_in_eights(a.mul) && absent_or_in_eights(a.add);
  return fits && with_row_block(a.x.shape[1], [](auto) {});
}

void residual_norm(const ResidualNorm& a, void* stream) {
  const std::int64_t rows = a.x.shape[0];
  if (rows == 0) return;
  const Operands k = {matrix(a.x),
                      matrix(a.y),
                      matrix(a.gate),
                      indices(a.gate_index),
                      matrix(a.out),
                      matrix(a.mul),
                      matrix(a.add),
                      indices(a.index),
                      base_of(a.mul, a.one_plus),
                      matrix(a.z),
                      static_cast<float*>(a.stats.data),
                      a.stats.strides[0],
                      rows,
                      a.eps};
  with_row_block(a.x.shape[1], [&](auto threads) {
    constexpr int T = decltype(threads)::value;
    with_activation(a.x.dtype, [&](auto x) {
      using X = typename decltype(x)::type;
      const unsigned blocks = row_blocks(rows, kBlocks<T>);
      if (a.gate) {
        residual_norm_row<T, X, true><<<blocks, T, 0, stream_of(stream)>>>(k);
      } else {
        residual_norm_row<T, X, false><<<blocks, T, 0, stream_of(stream)>>>(k);
      }
    });
  });
  check_launch("residual_norm");
}

}  // namespace ballast::ops::cuda
