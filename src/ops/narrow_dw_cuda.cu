#include "ops/linear_cuda.h"
#include "ops/quantum.h"
#include "ops/tensor_core.cuh"

namespace ballast::ops::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWide = 32;               // columns of the wide operand that a block takes
constexpr int kRows = 128, kParts = 4;  // of a stage; warps that share its rows
constexpr int kStages = 4;
static_assert(kTokenQuantum % kRows == 0);

// Chunks of 16 bytes of a stage's rows, so that eight rows' chunks of one number lie in different
// banks as far as there are any.
template <int kChunks>
__device__ __forceinline__ int place(int row, int chunk) {
  if constexpr (kChunks == 3) return row * kChunks + chunk;  // an odd number is spread already
  return row * kChunks + (chunk ^ (row * kChunks / 8) % kChunks);
}

template <int kEights>
struct Stage {
  uint4 wide[kRows * kWide / 8];
  uint4 narrow[kRows * kEights];
};

template <int kEights>
struct Shared {
  Stage<kEights> stages[kStages];
  float part[kParts][kWide * 8 * kEights];
};

// Rows [first, first + kRows) of both operands, 0 from row `end` on and beside the narrow one.
template <int kEights>
__device__ __forceinline__ void start_stage(Stage<kEights>& s, const NarrowDw& a,
                                            std::int64_t wide_from, int narrow_from,
                                            std::int64_t first, std::int64_t end) {
  const auto* const wide = static_cast<const bf16*>(a.wide);
  const auto* const narrow = static_cast<const bf16*>(a.narrow);
#pragma unroll
  for (int k = 0; k < kRows * kWide / 8 / kThreads; ++k) {
    const int i = threadIdx.x + k * kThreads, row = i / (kWide / 8), chunk = i % (kWide / 8);
    const std::int64_t column = wide_from + 8 * chunk;
    const bool real = first + row < end && column < a.wide_columns;
    start_copy(&s.wide[place<kWide / 8>(row, chunk)],
               real ? wide + (first + row) * a.wide_stride + column : wide, real);
  }
#pragma unroll
  for (int k = 0; k < (kRows * kEights + kThreads - 1) / kThreads; ++k) {
    const int i = threadIdx.x + k * kThreads, row = i / kEights, chunk = i % kEights;
    if (kRows * kEights % kThreads != 0 && i >= kRows * kEights) break;
    const int column = narrow_from + 8 * chunk;
    const bool real = first + row < end && column < a.narrow_columns;
    uint4* const to = &s.narrow[place<kEights>(row, chunk)];
    const bf16* const from = real ? narrow + (first + row) * a.narrow_stride + column : narrow;
    if (column + 8 <= a.narrow_columns || !real) {
      start_copy(to, from, real);
      continue;
    }
    for (int e = 0; e < 8; ++e) {
      reinterpret_cast<bf16*>(to)[e] =
          column + e < a.narrow_columns ? from[e] : from_float<bf16>(0);
    }
  }
  end_of_group();
}

// A block makes 32 columns of the wide operand by up to 32 of the narrow one and walks along all
// rows, several stages ahead of its arithmetic. A quantum's sum is that of four warps, each of
// every fourth 32 rows, added in order; the quanta are added to dw one after the other. So the wide
// operand is read once, and partial sums never leave the block.
template <int kEights>
__global__ void __launch_bounds__(kThreads) add_narrow_dw(const __grid_constant__ NarrowDw a) {
  constexpr int kNarrow = 8 * kEights, kElements = kWide * kNarrow / kThreads;
  extern __shared__ uint4 memory[];
  auto& shared = *reinterpret_cast<Shared<kEights>*>(memory);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, half = warp % 2, part = warp / 2;
  const int narrow_from = static_cast<int>(blockIdx.x) * kNarrow;
  const std::int64_t wide_from = std::int64_t{blockIdx.y} * kWide;

  float* place_of[kElements];
  float total[kElements];
#pragma unroll
  for (int k = 0; k < kElements; ++k) {
    const int i = threadIdx.x + k * kThreads, w = i % kWide, c = i / kWide;
    const bool real = wide_from + w < a.wide_columns && narrow_from + c < a.narrow_columns;
    const std::int64_t at = a.wide_is_rows ? (wide_from + w) * a.out_stride + narrow_from + c
                                           : (narrow_from + c) * a.out_stride + wide_from + w;
    place_of[k] = real ? a.out + at : nullptr;
    total[k] = real ? *place_of[k] : 0.0f;
  }

  const std::int64_t stages = (a.rows + kRows - 1) / kRows;
#pragma unroll
  for (int s = 0; s < kStages - 1; ++s) {
    start_stage<kEights>(shared.stages[s], a, wide_from, narrow_from, std::int64_t{s} * kRows,
                         a.rows);
  }
  float sum[kEights][4] = {};
  constexpr int kStagesOfQuantum = static_cast<int>(kTokenQuantum) / kRows;
  for (std::int64_t s = 0; s < stages; ++s) {
    wait_for_groups<kStages - 2>();
    __syncthreads();
    start_stage<kEights>(shared.stages[(s + kStages - 1) % kStages], a, wide_from, narrow_from,
                         (s + kStages - 1) * kRows, a.rows);
    const Stage<kEights>& now = shared.stages[s % kStages];
#pragma unroll
    for (int step = 0; step < kRows / kParts / 16; ++step) {
      // Both lie with rows of tokens, along which is multiplied: both are turned as they are read.
      const int row = part * (kRows / kParts) + 16 * step;
      LeftMatrix wide;
      {
        // Matrices: columns 0 ... 7, 8 ... 15 of the first eight rows, then of the second.
        const int r = row + lane % 8 + lane / 16 * 8, chunk = 2 * half + lane / 8 % 2;
        load_transposed(wide.x, &now.wide[place<kWide / 8>(r, chunk)]);
      }
#pragma unroll
      for (int e = 0; e < kEights; e += 2) {
        // Matrices: rows 0 ... 7, 8 ... 15 of eight columns, then of the next eight.
        const int r = row + lane % 16, chunk = e + lane / 16;
        unsigned narrow[4];
        load_transposed(narrow, &now.narrow[place<kEights>(r, chunk < kEights ? chunk : e)]);
        multiply_add(sum[e], wide, narrow[0], narrow[1]);
        if (e + 1 < kEights)
          multiply_add(sum[e + 1 < kEights ? e + 1 : e], wide, narrow[2], narrow[3]);
      }
    }
    if ((s + 1) % kStagesOfQuantum != 0 && s + 1 < stages) continue;
#pragma unroll
    for (int e = 0; e < kEights; ++e) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int w = 16 * half + lane / 4 + i / 2 * 8, c = 8 * e + 2 * (lane % 4) + i % 2;
        shared.part[part][c * kWide + w] = sum[e][i];
        sum[e][i] = 0;
      }
    }
    __syncthreads();  // the next one of a stage comes before anybody writes here again
#pragma unroll
    for (int k = 0; k < kElements; ++k) {
      const int i = threadIdx.x + k * kThreads;
      float quantum = shared.part[0][i];
#pragma unroll
      for (int p = 1; p < kParts; ++p) quantum += shared.part[p][i];
      total[k] = __fmaf_rn(a.alpha, quantum, total[k]);
    }
  }
#pragma unroll
  for (int k = 0; k < kElements; ++k) {
    if (place_of[k]) *place_of[k] = total[k];
  }
}

template <int kEights>
void launch_narrow_dw(const NarrowDw& a, cudaStream_t stream) {
  constexpr int kBytes = sizeof(Shared<kEights>);
  // More than the 48 KiB that a kernel has without asking; once is enough.
  static const int asked =
      cudaFuncSetAttribute(reinterpret_cast<const void*>(add_narrow_dw<kEights>),
                           cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  check_cuda(asked, "asking for shared memory");
  const dim3 blocks(blocks_for(a.narrow_columns, 8 * kEights), blocks_for(a.wide_columns, kWide));
  add_narrow_dw<kEights><<<blocks, kThreads, kBytes, stream>>>(a);
}

}  // namespace

void narrow_dw(const NarrowDw& a, void* stream) {
  // As few groups of columns as there can be, and those of one size.
  const std::int64_t groups = (a.narrow_columns + 31) / 32;
  const std::int64_t eights = (a.narrow_columns + 8 * groups - 1) / (8 * groups);
  if (eights == 1) {
    launch_narrow_dw<1>(a, stream_of(stream));
  } else if (eights == 2) {
    launch_narrow_dw<2>(a, stream_of(stream));
  } else if (eights == 3) {
    launch_narrow_dw<3>(a, stream_of(stream));
  } else {
    launch_narrow_dw<4>(a, stream_of(stream));
  }
  check_launch("narrow_dw");
}

}  // namespace ballast::ops::cuda
