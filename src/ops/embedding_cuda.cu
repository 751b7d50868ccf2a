#include "ops/embedding_cuda.h"
#include "ops/kernels/row_kernel.cuh"

namespace ballast::ops::cuda {
namespace {

// Forward: one thread an element, striding through the rows. Backward: a block belongs to a row of
// dy and kBlockColumns columns; the block of an id's first row adds all rows of that id in order,
// kept in registers, and the others end at once. Ids are looked at kThreads at a time.
constexpr int kThreads = 128;
constexpr int kColumns = 4, kBlockColumns = kColumns * kThreads;

__global__ void forward(Matrix table, const std::int32_t* ids, Matrix y, std::int64_t rows,
                        std::int64_t columns) {
  const std::int64_t all = rows * columns, step = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < all; i += step) {
    const std::int64_t r = i / columns, c = i % columns;
    write(y, r, c, read(table, ids[r], c));
  }
}

__global__ void backward(const std::int32_t* ids, Matrix dy, Matrix dtable, std::int64_t rows,
                         std::int64_t columns) {
  __shared__ int any;
  __shared__ bool match[kThreads];
  const std::int64_t own = blockIdx.x;
  const std::int32_t id = ids[own];
  if (threadIdx.x == 0) any = 0;
  __syncthreads();
  for (std::int64_t r = threadIdx.x; r < own; r += kThreads) {
    if (ids[r] == id) any = 1;  // all that write it write the same
  }
  __syncthreads();
  if (any) return;
  const std::int64_t first = std::int64_t{blockIdx.y} * kBlockColumns + threadIdx.x;
  float sum[kColumns] = {};
#pragma unroll
  for (int k = 0; k < kColumns; ++k) {
    if (first + k * kThreads < columns) sum[k] = read(dtable, id, first + k * kThreads);
  }
  for (std::int64_t base = own; base < rows; base += kThreads) {
    __syncthreads();
    if (threadIdx.x == 0) any = 0;
    __syncthreads();
    const std::int64_t r = base + threadIdx.x;
    match[threadIdx.x] = r < rows && ids[r] == id;
    if (match[threadIdx.x]) any = 1;
    __syncthreads();
    if (!any) continue;
    for (int t = 0; t < kThreads; ++t) {
      if (!match[t]) continue;
#pragma unroll
      for (int k = 0; k < kColumns; ++k) {
        const std::int64_t c = first + k * kThreads;
        if (c < columns) sum[k] += read(dy, base + t, c);
      }
    }
  }
#pragma unroll
  for (int k = 0; k < kColumns; ++k) {
    if (first + k * kThreads < columns) write(dtable, id, first + k * kThreads, sum[k]);
  }
}

}  // namespace

void embedding(const Embedding& a, void* stream) {
  const std::int64_t rows = a.y.shape[0], columns = a.y.shape[1];
  if (rows * columns == 0) return;
  forward<<<some_blocks(rows * columns, kThreads), kThreads, 0, stream_of(stream)>>>(
      matrix(a.table), static_cast<const std::int32_t*>(a.ids.data), matrix(a.y), rows, columns);
  check_launch("embedding");
}

void embedding_backward(const EmbeddingBackward& a, void* stream) {
  const std::int64_t rows = a.dy.shape[0], columns = a.dy.shape[1];
  if (rows * columns == 0) return;
  const dim3 blocks(static_cast<unsigned>(rows), blocks_for(columns, kBlockColumns));
  backward<<<blocks, kThreads, 0, stream_of(stream)>>>(
      static_cast<const std::int32_t*>(a.ids.data), matrix(a.dy), matrix(a.dtable), rows, columns);
  check_launch("embedding_backward");
}

}  // namespace ballast::ops::cuda
