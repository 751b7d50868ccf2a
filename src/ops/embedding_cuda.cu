#include "ops/embedding_cuda.h"
#include "ops/row_kernel.cuh"

namespace ballast::ops::cuda {
namespace {

// Forward: one thread an element, striding through the rows. Backward: one thread owns a column and
// walks over the rows in order, because two of them may be the same row of the table; a warp's
// columns are neighbours, so its loads are whole lines.
constexpr int kThreads = 128;

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
  const std::int64_t c = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (c >= columns) return;
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t row = ids[r];
    write(dtable, row, c, read(dtable, row, c) + read(dy, r, c));
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
  backward<<<blocks_for(columns, kThreads), kThreads, 0, stream_of(stream)>>>(
      static_cast<const std::int32_t*>(a.ids.data), matrix(a.dy), matrix(a.dtable), rows, columns);
  check_launch("embedding_backward");
}

}  // namespace ballast::ops::cuda
