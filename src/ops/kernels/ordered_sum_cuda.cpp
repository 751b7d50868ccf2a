#include "ops/kernels/ordered_sum_cuda.h"

#include "memory/gpu.h"

namespace ballast::ops::cuda {
namespace {

struct SumScratch {
  explicit SumScratch(GpuQueue&)
      : memory(Bytes(static_cast<std::uint64_t>(kSumPartials + kSumScalars + 1) * sizeof(double)),
               "sums of blocks") {}
  GpuArena memory;
};

struct ColumnScratch {
  explicit ColumnScratch(GpuQueue&)
      : memory(Bytes(static_cast<std::uint64_t>(kColumnScratch) * sizeof(float)),
               "sums of columns") {}
  GpuArena memory;
};

}  // namespace

double* sum_scratch(GpuQueue& queue) {
  return reinterpret_cast<double*>(queue.local<SumScratch>().memory.base());
}

float* column_scratch(GpuQueue& queue) {
  return reinterpret_cast<float*>(queue.local<ColumnScratch>().memory.base());
}

}  // namespace ballast::ops::cuda
