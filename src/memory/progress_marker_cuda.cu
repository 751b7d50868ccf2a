#include <cuda_runtime.h>

#include "memory/progress_marker_cuda.h"

namespace ballast {
namespace {

__global__ void store_marker(std::uint32_t* word, std::uint32_t position) { *word = position; }

}  // namespace

void write_progress_marker(std::uint32_t* word, std::uint32_t position, void* stream) {
  store_marker<<<1, 1, 0, static_cast<cudaStream_t>(stream)>>>(word, position);
}

}  // namespace ballast
