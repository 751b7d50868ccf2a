#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "memory/library_search.h"

namespace ballast {

// A library that work on the GPU needs.
struct GpuLibrary {
  std::string name;     // "cuDNN"
  std::string file;     // "libcudnn.so.9"
  std::string path;     // where it is; empty where there is none
  std::string origin;   // "from a Python package"; empty where there is none
  std::string version;  // "9.19.0"; empty where it does not say
  std::string problem;  // why it cannot be used; empty when it can
};

// What to search for. cuda_major: 13 for CUDA 13, the version we were built with; the library of
// another one serves where there is none of that.
WantedLibrary wanted_cublas_lt(int cuda_major);
WantedLibrary wanted_nvrtc(int cuda_major);
WantedLibrary wanted_cudnn(int cuda_major);

// cuBLASLt, cuDNN and NVRTC, loaded and let go. cuda_major: 13 for CUDA 13.
std::vector<GpuLibrary> find_gpu_libraries(int cuda_major);

// Why that cuDNN (91900 is 9.19.0) cannot be used; nullopt when it can.
std::optional<std::string> cudnn_fault(std::size_t version);

}  // namespace ballast
