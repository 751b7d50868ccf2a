#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "ops/conv3d/conv3d_cuda.h"

// A frame's convolution as cuDNN sees it: the graph, and what may be asked about it without a GPU.
namespace ballast::ops::cuda {

class CudnnGraph;

enum ConvTensor : std::int64_t { kConvX = 1, kConvW, kConvY, kConvBias };
inline constexpr std::array<std::int64_t, 4> kConvTensors = {kConvX, kConvW, kConvY, kConvBias};

// Of so many rows.
CudnnGraph conv_graph(const ConvFrame& a, std::int64_t height);

// How many bytes of workspace the kernel that computes a whole frame (of chosen_height rows) on a
// GPU with these properties needs for that and for a.height of its rows, the larger number; -1: it
// cannot compute them. Needs cuDNN and any libcuda.so.1, no GPU.
std::int64_t workspace_of_part(const ConvFrame& a, std::string_view gpu_properties);

}  // namespace ballast::ops::cuda
