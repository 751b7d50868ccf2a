#include "ops/kernels/elementwise_cuda.cuh"
#include "ops/linear/append_adapter_cuda.h"

namespace ballast::ops::cuda {
namespace {

// Blocks with the same y share one matrix; their threads take eight neighbouring elements of it at
// a time and stride through the rest. Bound by launches more than by memory, so that all matrices
// of a block go in one: a grid as high as there are of them, as wide as the largest asks for.
constexpr int kThreads = 256;

struct Item {
  const void* from;
  void* to;
  std::int64_t from_step, to_step;
  std::int64_t from_rows, from_columns, rows, columns, column;
  float factor;
  bool from_f32, to_f32;
  bool whole;  // eights are aligned on both sides, and wholly inside of from or outside
};
struct Items {
  Item at[AppendItems::kMax];
};

template <class From, class To, bool kWhole>
__device__ __forceinline__ void lay(const Item& a) {
  const auto* from = static_cast<const From*>(a.from);
  auto* to = static_cast<To*>(a.to);
  const std::int64_t per_row = (a.columns + 7) / 8, all = a.rows * per_row;
  for (std::int64_t i = blockIdx.x * std::int64_t{kThreads} + threadIdx.x; i < all;
       i += std::int64_t{gridDim.x} * kThreads) {
    const std::int64_t row = i / per_row, at = i % per_row * 8;
    const std::int64_t left = a.columns - at, first = at - a.column;
    const bool inside = row < a.from_rows;
    float x[8];
    if constexpr (kWhole) {
      if (inside && first >= 0 && first < a.from_columns) {
        load8(from + row * a.from_step + first, x);
      } else {
#pragma unroll
        for (int k = 0; k < 8; ++k) x[k] = 0;
      }
    } else {
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const std::int64_t c = first + k;
        x[k] = inside && c >= 0 && c < a.from_columns ? to_float(from[row * a.from_step + c]) : 0;
      }
    }
#pragma unroll
    for (int k = 0; k < 8; ++k) x[k] = mul(x[k], a.factor);
    store_some<kWhole>(to + row * a.to_step + at, left < 8 ? static_cast<int>(left) : 8, x);
  }
}

template <class From, class To>
__device__ __forceinline__ void lay_any(const Item& a) {
  if (a.whole) {
    lay<From, To, true>(a);
  } else {
    lay<From, To, false>(a);
  }
}

__global__ void __launch_bounds__(kThreads) lay_all(const __grid_constant__ Items items) {
  const Item& a = items.at[blockIdx.y];
  if (a.from_f32) {
    a.to_f32 ? lay_any<float, float>(a) : lay_any<float, bf16>(a);
  } else {
    a.to_f32 ? lay_any<bf16, float>(a) : lay_any<bf16, bf16>(a);
  }
}

}  // namespace

void append_adapter(const AppendItems& a, void* stream) {
  Items items = {};
  std::int64_t most = 0;
  for (int i = 0; i < a.count; ++i) {
    const AppendItem& from = a.items[i];
    Item& to = items.at[i];
    to.from = from.from.data;
    to.to = from.to.data;
    to.from_step = from.from.strides[0];
    to.to_step = from.to.strides[0];
    to.from_rows = from.from.shape[0];
    to.from_columns = from.from.shape[1];
    to.rows = from.to.shape[0];
    to.columns = from.to.shape[1];
    to.column = from.column;
    to.factor = from.factor;
    to.from_f32 = from.from.dtype == DType::f32;
    to.to_f32 = from.to.dtype == DType::f32;
    to.whole = in_eights(from.from) && in_eights(from.to) && from.column % 8 == 0;
    const std::int64_t eights = to.rows * ((to.columns + 7) / 8);
    if (eights > most) most = eights;
  }
  if (most == 0) return;
  constexpr unsigned kMaxBlocks = 132 * 4;  // for each matrix
  const dim3 grid(some_blocks(most, kThreads, kMaxBlocks), static_cast<unsigned>(a.count));
  lay_all<<<grid, kThreads, 0, stream_of(stream)>>>(items);
  check_launch("append_adapter");
}

}  // namespace ballast::ops::cuda
