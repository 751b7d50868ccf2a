#include "ops/gated_residual_cuda.h"
#include "ops/kernels/column_sums.cuh"
#include "ops/kernels/row_kernel.cuh"

namespace ballast::ops::cuda {
namespace {

// The gate is base + table row; an absent table reads as zeros. The backward is the same with no x:
// dy = dout * gate.
struct Gated {
  Matrix x, y, gate;
  const std::int32_t* index;
  float base;
  Matrix out;
  std::int64_t rows, columns;
};

// Any dtypes, widths and strides, an element at a time.
template <bool kAdd>
__global__ void gated_any(Gated a) {
  const std::int64_t all = a.rows * a.columns, step = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < all; i += step) {
    const std::int64_t r = i / a.columns, c = i % a.columns;
    const float gate = a.gate.data ? a.base + read(a.gate, table_row(a.index, r), c) : a.base;
    const float gated = read(a.y, r, c) * gate;
    write(a.out, r, c, kAdd ? read(a.x, r, c) + gated : gated);
  }
}

// A thread owns eight columns and walks down the rows, two at a time (see column_grid): the gate
// stays in its registers and is read again where the table row changes. Y and Out are the dtypes of
// what is multiplied and of the result; x has that of the result.
template <class Y, class Out, bool kAdd>
__global__ void __launch_bounds__(kColumnThreads) gated_eights(Gated a) {
  const std::int64_t c = (std::int64_t{blockIdx.x} * kColumnThreads + threadIdx.x) * 8;
  if (c >= a.columns) return;
  const Out* const x = static_cast<const Out*>(a.x.data) + c;
  const Y* const y = static_cast<const Y*>(a.y.data) + c;
  Out* const out = static_cast<Out*>(a.out.data) + c;
  float gate[8];
  int held = -1;
  const auto apply = [&](const Eight<Out>& from, const Eight<Y>& by, std::int64_t row, int table) {
    if (table != held) {
      read_eight(a.gate, table, c, a.base, gate);
      held = table;
    }
    float e[8], sum[8];
    by.unpack(e);
    if constexpr (kAdd) from.unpack(sum);
#pragma unroll
    for (int i = 0; i < 8; ++i) sum[i] = kAdd ? sum[i] + e[i] * gate[i] : e[i] * gate[i];
    store_eight(out + row * a.out.step, sum);
  };
  const std::int64_t next = gridDim.y;
  for (std::int64_t r = blockIdx.y; r < a.rows; r += 2 * next) {
    const bool second = r + next < a.rows;
    Eight<Out> from[2];
    Eight<Y> by[2];
    int table[2] = {};
    if constexpr (kAdd) from[0].load(x + r * a.x.step);
    by[0].load_once(y + r * a.y.step);
    table[0] = table_row(a.index, r);
    if (second) {
      if constexpr (kAdd) from[1].load(x + (r + next) * a.x.step);
      by[1].load_once(y + (r + next) * a.y.step);
      table[1] = table_row(a.index, r + next);
    }
    apply(from[0], by[0], r, table[0]);
    if (second) apply(from[1], by[1], r + next, table[1]);
  }
}

template <class Y, class Out, bool kAdd>
void launch_eights(const Gated& a, cudaStream_t stream) {
  gated_eights<Y, Out, kAdd><<<column_grid(a.rows, a.columns), kColumnThreads, 0, stream>>>(a);
}
template <bool kAdd>
void launch_any(const Gated& a, cudaStream_t stream) {
  gated_any<kAdd><<<some_blocks(a.rows * a.columns, 256), 256, 0, stream>>>(a);
}

template <class Dout, class Y>
struct GateTerm {
  const Dout* dout;
  std::int64_t dout_step;
  const Y* y;
  std::int64_t y_step;
  __device__ __forceinline__ float operator()(std::int64_t r, std::int64_t c) const {
    return __fmul_rn(to_float(dout[r * dout_step + c]), to_float(y[r * y_step + c]));
  }
  struct Row {
    Eight<Dout> dout;
    Eight<Y> y;
    __device__ __forceinline__ void load(const GateTerm& t, std::int64_t r, std::int64_t c) {
      dout.load(t.dout + r * t.dout_step + c);
      y.load(t.y + r * t.y_step + c);
    }
    __device__ __forceinline__ void add(float (&sums)[8]) const {
      float a[8], b[8];
      dout.unpack(a);
      y.unpack(b);
#pragma unroll
      for (int i = 0; i < 8; ++i) sums[i] += __fmul_rn(a[i], b[i]);
    }
  };
};

Gated operands(const View& x, const View& y, const View& gate, const View& index, const View& out) {
  return {
      matrix(x),          matrix(y),   matrix(gate), static_cast<const std::int32_t*>(index.data),
      gate ? 0.0f : 1.0f, matrix(out), out.shape[0], out.shape[1]};
}

}  // namespace

void gated_residual(const GatedResidual& a, void* stream) {
  const Gated k = operands(a.x, a.y, a.gate, a.index, a.out);
  if (k.rows * k.columns == 0) return;
  const bool eights = a.y.dtype == DType::bf16 && a.x.dtype == a.out.dtype && in_eights(a.x) &&
                      in_eights(a.y) && in_eights(a.out) && absent_or_in_eights(a.gate);
  if (!eights) {
    launch_any<true>(k, stream_of(stream));
  } else if (a.out.dtype == DType::bf16) {
    launch_eights<bf16, bf16, true>(k, stream_of(stream));
  } else {
    launch_eights<bf16, float, true>(k, stream_of(stream));
  }
  check_launch("gated_residual");
}

void gated_residual_backward(const GatedResidualBackward& a, void* stream) {
  const Gated k = operands(View(), a.dout, a.gate, a.index, a.dy);
  if (k.rows * k.columns == 0) return;
  if (a.dgate) {  // before dy, which may overwrite dout or y
    with_activation(a.dout.dtype, [&](auto dout) {
      with_activation(a.y.dtype, [&](auto y) {
        using Dout = typename decltype(dout)::type;
        using Y = typename decltype(y)::type;
        add_table_sums(GateTerm<Dout, Y>{static_cast<const Dout*>(a.dout.data), a.dout.strides[0],
                                         static_cast<const Y*>(a.y.data), a.y.strides[0]},
                       in_eights(a.dout) && in_eights(a.y), a.index, k.rows, a.dgate, a.scratch,
                       stream_of(stream));
      });
    });
  }
  const bool eights = a.dy.dtype == DType::bf16 && in_eights(a.dout) && in_eights(a.dy) &&
                      absent_or_in_eights(a.gate);
  if (!eights) {
    launch_any<false>(k, stream_of(stream));
  } else if (a.dout.dtype == DType::bf16) {
    launch_eights<bf16, bf16, false>(k, stream_of(stream));
  } else {
    launch_eights<float, bf16, false>(k, stream_of(stream));
  }
  check_launch("gated_residual_backward");
}

}  // namespace ballast::ops::cuda
