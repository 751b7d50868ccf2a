#include <cuda_runtime.h>

#include "memory/note_place_cuda.h"

namespace ballast {
namespace {

__global__ void write_place(std::uint32_t* word, std::uint32_t place) { *word = place; }

}  // namespace

void note_place(std::uint32_t* word, std::uint32_t place, void* stream) {
  write_place<<<1, 1, 0, static_cast<cudaStream_t>(stream)>>>(word, place);
}

}  // namespace ballast
