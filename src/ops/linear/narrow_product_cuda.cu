#include "ops/kernels/tensor_core.cuh"
#include "ops/linear/linear_cuda.h"

namespace ballast::ops::cuda {
namespace {

constexpr int kWarps = 8, kStep = 32;  // of a block; along the contraction

__device__ __forceinline__ uint4 load_sixteen(const bf16* p) {
  return *reinterpret_cast<const uint4*>(p);
}

// Eight elements of a column.
__device__ __forceinline__ uint4 load_column(const bf16* p, std::int64_t stride) {
  unsigned x[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) x[i] = *reinterpret_cast<const std::uint16_t*>(p + i * stride);
  return make_uint4(x[0] | x[1] << 16, x[2] | x[3] << 16, x[4] | x[5] << 16, x[6] | x[7] << 16);
}

// What a lane holds of both operands while it walks. Rows and columns that are not there are those
// of the last one: what they give is not written.
template <int kTiles, int kEights, bool kTransposed>
struct Walk {
  const bf16* left[kTiles][2];
  const bf16* right[kEights];
  std::int64_t right_stride;
  float sum[kTiles][kEights][4];

  // kSteps steps, the first at element k, each eighth.
  template <int kSteps>
  __device__ __forceinline__ void take(std::int64_t k) {
    uint4 x[kSteps][kTiles][2], w[kSteps][kEights];
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const std::int64_t at = k + i * kWarps * kStep;
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
        x[i][m][0] = load_sixteen(left[m][0] + at);
        x[i][m][1] = load_sixteen(left[m][1] + at);
      }
#pragma unroll
      for (int n = 0; n < kEights; ++n) {
        w[i][n] = kTransposed ? load_sixteen(right[n] + at)
                              : load_column(right[n] + at * right_stride, right_stride);
      }
    }
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
        const uint4 &low = x[i][m][0], &high = x[i][m][1];
#pragma unroll
        for (int n = 0; n < kEights; ++n) {
          multiply_add(sum[m][n], {{low.x, high.x, low.y, high.y}}, w[i][n].x, w[i][n].y);
          multiply_add(sum[m][n], {{low.z, high.z, low.w, high.w}}, w[i][n].z, w[i][n].w);
        }
      }
    }
  }
};

// A block makes all columns of 16 or 32 rows. Its warps take every eighth step of 32 along the
// contraction, of which a lane reads eight neighbours: what the tensor cores call columns 2 t, 2 t
// + 1, 2 t + 8, 2 t + 9 of two matrices are elements 8 t ... 8 t + 7 of both operands. So operands
// go from memory to registers, 64 bytes of a row by four lanes, several steps ahead. The eight sums
// are added in order: an element's bits depend on the contraction alone.
template <int kTiles, int kEights, bool kTransposed>
__global__ void __launch_bounds__(32 * kWarps)
    multiply_narrow(const __grid_constant__ NarrowProduct a) {
  constexpr int kRows = 16 * kTiles, kColumns = 8 * kEights;
  constexpr int kAhead = 2 * kTiles + kEights <= 6 ? 4 : 2;
  __shared__ float part[kWarps][kRows][kColumns];
  const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  const std::int64_t first = std::int64_t{blockIdx.x} * kRows;
  Walk<kTiles, kEights, kTransposed> walk;
  walk.right_stride = a.right_stride;
#pragma unroll
  for (int m = 0; m < kTiles; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const std::int64_t row = first + 16 * m + 8 * half + g, last = a.rows - 1;
      walk.left[m][half] =
          static_cast<const bf16*>(a.left) + (row < last ? row : last) * a.left_stride;
    }
#pragma unroll
    for (int n = 0; n < kEights; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) walk.sum[m][n][i] = 0;
    }
  }
#pragma unroll
  for (int n = 0; n < kEights; ++n) {
    const std::int64_t column = 8 * n + g, last = a.columns - 1;
    walk.right[n] = static_cast<const bf16*>(a.right) +
                    (column < last ? column : last) * (kTransposed ? a.right_stride : 1);
  }
  const std::int64_t stride = kWarps * kStep, end = a.depth;
  std::int64_t k = warp * kStep + 8 * t;
  for (; k + (kAhead - 1) * stride < end; k += kAhead * stride) walk.template take<kAhead>(k);
  for (; k < end; k += stride) walk.template take<1>(k);
#pragma unroll
  for (int m = 0; m < kTiles; ++m) {
#pragma unroll
    for (int n = 0; n < kEights; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        part[warp][16 * m + g + i / 2 * 8][8 * n + 2 * t + i % 2] = walk.sum[m][n][i];
      }
    }
  }
  __syncthreads();
  auto* const out = static_cast<bf16*>(a.out);
  for (int i = threadIdx.x; i < kRows * kColumns; i += 32 * kWarps) {
    const int r = i / kColumns, c = i % kColumns;
    if (first + r >= a.rows || c >= a.columns) continue;
    float total = part[0][r][c];
#pragma unroll
    for (int k = 1; k < kWarps; ++k) total += part[k][r][c];
    bf16* const to = out + (first + r) * a.out_stride + c;
    const float before = a.accumulate ? to_float(*to) : 0.0f;
    *to = from_float<bf16>(__fmaf_rn(a.alpha, total, before));
  }
}

template <int kTiles, int kEights>
void launch_narrow(const NarrowProduct& a, cudaStream_t stream) {
  const unsigned blocks = blocks_for(a.rows, 16 * kTiles);
  if (a.right_transposed) {
    multiply_narrow<kTiles, kEights, true><<<blocks, 32 * kWarps, 0, stream>>>(a);
  } else {
    multiply_narrow<kTiles, kEights, false><<<blocks, 32 * kWarps, 0, stream>>>(a);
  }
}

// Of many rows 32 to a block: the right operand is read by half as many.
template <int kEights>
void launch_narrow(const NarrowProduct& a, cudaStream_t stream) {
  constexpr std::int64_t kMany = 4096;
  if constexpr (kEights <= 6) {  // more sums do not fit into shared memory
    if (a.rows >= kMany) return launch_narrow<2, kEights>(a, stream);
  }
  launch_narrow<1, kEights>(a, stream);
}

}  // namespace

void narrow_product(const NarrowProduct& a, void* stream) {
  if (a.rows == 0) return;
  const std::int64_t eights = (a.columns + 7) / 8;
  if (eights <= 1) {
    launch_narrow<1>(a, stream_of(stream));
  } else if (eights <= 2) {
    launch_narrow<2>(a, stream_of(stream));
  } else if (eights <= 4) {
    launch_narrow<4>(a, stream_of(stream));
  } else if (eights <= 6) {
    launch_narrow<6>(a, stream_of(stream));
  } else {
    launch_narrow<8>(a, stream_of(stream));
  }
  check_launch("narrow_product");
}

}  // namespace ballast::ops::cuda
