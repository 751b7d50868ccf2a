#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace ballast {

// A library that work on the GPU needs, asked for by its name as the loader finds it.
struct GpuLibrary {
  std::string name;     // "cuDNN"
  std::string file;     // "libcudnn.so.9"
  std::string version;  // "9.19.0"; empty where it does not say
  std::string problem;  // why it cannot be used; empty when it can
};

// cuBLASLt, cuDNN and NVRTC, loaded and let go. cuda_major: 13 for CUDA 13.
std::vector<GpuLibrary> find_gpu_libraries(int cuda_major);

// Why that cuDNN (91900 is 9.19.0) cannot be used; nullopt when it can.
std::optional<std::string> cudnn_fault(std::size_t version);

}  // namespace ballast
