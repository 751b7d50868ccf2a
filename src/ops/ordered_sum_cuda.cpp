#include "ops/ordered_sum_cuda.h"

#include "memory/gpu.h"

namespace ballast::ops::cuda {
namespace {

struct SumScratch {
  explicit SumScratch(GpuQueue&)
      : memory(Bytes(static_cast<std::uint64_t>(kSumPartials + kSumScalars + 1) * sizeof(double)),
               "sums of blocks") {}
  GpuArena memory;
};

}  // namespace

double* sum_scratch(GpuQueue& queue) {
  return reinterpret_cast<double*>(queue.local<SumScratch>().memory.base());
}

}  // namespace ballast::ops::cuda
