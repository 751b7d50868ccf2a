#pragma once

// Sums over rows as add_column_sums of ops/kernels/row_kernel.cuh makes them, with its bits, for
// terms that come in eights: an eighth of a quantum and eight columns to a thread, so that a few
// thousand rows fill the machine, and a second kernel that adds the eighths up. Included by .cu
// files only.

#include "ops/kernels/row_kernel.cuh"

namespace ballast::ops::cuda {

constexpr int kEighthThreads = 64;

// partial[e, c] = the sum of eighth e, in order from zero. Term has a Row with load(term, row, c)
// and add(sums). The next rows are loaded before these are added: a compiler that may put a load
// where its value is used does so, and then every row waits for its own.
template <class Term>
__global__ void __launch_bounds__(kEighthThreads)
    sum_eighths(Term term, std::int64_t first, std::int64_t rows, std::int64_t columns,
                float* partial) {
  constexpr int kFlight = 4;
  const std::int64_t c = (std::int64_t{blockIdx.x} * kEighthThreads + threadIdx.x) * 8;
  if (c >= columns) return;
  const std::int64_t begin = first + blockIdx.y * kEighthRows;
  const std::int64_t end = begin + kEighthRows < rows ? begin + kEighthRows : rows;
  const std::int64_t whole = begin + (end - begin) / kFlight * kFlight;
  float sums[8] = {};
  typename Term::Row next[kFlight];
  const auto load = [&](std::int64_t r) {
#pragma unroll
    for (int k = 0; k < kFlight; ++k) next[k].load(term, r + k, c);
  };
  if (begin < whole) load(begin);
#pragma unroll 1
  for (std::int64_t r = begin; r < whole; r += kFlight) {
    typename Term::Row now[kFlight];
#pragma unroll
    for (int k = 0; k < kFlight; ++k) now[k] = next[k];
    if (r + kFlight < whole) load(r + kFlight);
#pragma unroll
    for (int k = 0; k < kFlight; ++k) now[k].add(sums);
  }
#pragma unroll 1
  for (std::int64_t r = whole; r < end; ++r) {
    next[0].load(term, r, c);
    next[0].add(sums);
  }
  store_eight(partial + blockIdx.y * columns + c, sums);
}

// sums[c] += the quanta in order, each its eighths in order. A warp brings a quantum of 32 columns,
// the first one adds what all have brought.
constexpr int kQuantumWarps = 16;
static __global__ void __launch_bounds__(32 * kQuantumWarps)
    add_eighths(const float* partial, std::int64_t eighths, std::int64_t columns, float* sums) {
  __shared__ float quanta[kQuantumWarps][32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const std::int64_t c = std::int64_t{blockIdx.x} * 32 + lane;
  const bool mine = c < columns;
  float total = mine && warp == 0 ? sums[c] : 0;
  for (std::int64_t first = 0; first < eighths; first += kQuantumWarps * kEighths) {
    const std::int64_t at = first + warp * kEighths;
    float e[kEighths], quantum = 0;
#pragma unroll
    for (int k = 0; k < kEighths; ++k) {
      e[k] = mine && at + k < eighths ? partial[(at + k) * columns + c] : 0;
    }
#pragma unroll
    for (int k = 0; k < kEighths; ++k) quantum += e[k];
    quanta[warp][lane] = quantum;
    __syncthreads();
    if (warp == 0) {
#pragma unroll
      for (int q = 0; q < kQuantumWarps; ++q) total += quanta[q][lane];
    }
    __syncthreads();
  }
  if (mine && warp == 0) sums[c] = total;
}

// sums [C] += the sum of all rows' terms; C is one that has rows_in_column_scratch(). scratch:
// column_scratch_bytes().
template <class Term>
void add_column_eights(const Term& term, std::int64_t rows, std::int64_t columns, float* sums,
                       float* scratch, cudaStream_t stream) {
  // Whole quanta at a time, as many as the scratch holds: the sums go on where they were.
  const std::int64_t at_once = rows_in_column_scratch(columns);
  for (std::int64_t first = 0; first < rows; first += at_once) {
    const std::int64_t here = rows - first < at_once ? rows - first : at_once;
    const std::int64_t eighths = (here + kEighthRows - 1) / kEighthRows;
    const dim3 grid(blocks_for(columns / 8, kEighthThreads), static_cast<unsigned>(eighths));
    sum_eighths<<<grid, kEighthThreads, 0, stream>>>(term, first, first + here, columns, scratch);
    add_eighths<<<blocks_for(columns, 32), 32 * kQuantumWarps, 0, stream>>>(scratch, eighths,
                                                                            columns, sums);
  }
}

// The same for tables [T, C] and rows with an index: a table of one row has them all. eights:
// whether the term's operands come so.
template <class Term>
void add_table_sums(const Term& term, bool eights, const View& index, std::int64_t rows,
                    const View& sums, float* scratch, cudaStream_t stream) {
  const std::int64_t columns = sums.shape[sums.rank - 1];
  const bool one = sums.rank == 1 || sums.shape[0] == 1;
  if (eights && one && rows_in_column_scratch(columns) > 0) {
    add_column_eights(term, rows, columns, static_cast<float*>(sums.data), scratch, stream);
  } else {
    add_column_sums(term, index, rows, sums, stream);
  }
}

}  // namespace ballast::ops::cuda
