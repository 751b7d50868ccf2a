#include "ops/kernels/ordered_sum_cuda.h"

#include "memory/gpu.h"

namespace ballast::ops::cuda {
namespace {

struct ColumnScratch {
  explicit ColumnScratch(GpuQueue&) : memory(Bytes{kColumnScratchBytes}, "sums of columns") {}
  GpuArena memory;
};

}  // namespace

float* column_scratch(GpuQueue& queue) {
  return reinterpret_cast<float*>(queue.local<ColumnScratch>().memory.base());
}

}  // namespace ballast::ops::cuda
