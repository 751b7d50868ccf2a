#include <algorithm>

#include "core/error.h"
#include "ops/conv3d/conv3d_graph.h"
#include "ops/kernels/cudnn_graph.h"

namespace ballast::ops::cuda {

CudnnGraph conv_graph(const ConvFrame& a, std::int64_t height) {
  const std::int64_t c = a.channels, n = a.outputs, h = height, w = a.width;
  constexpr cudnnDataType_t kBf16 = CUDNN_DATA_BFLOAT16;
  using Layout = CudnnGraph::AnyLayout;
  CudnnGraph g;
  const auto x =
      g.in_memory(kConvX, Layout{kBf16, {1, c, 3, h, w}, {3 * h * w * c, 1, h * w * c, w * c, c}});
  const auto filter =
      g.in_memory(kConvW, Layout{kBf16, {n, c, 3, 3, 3}, {27 * c, 1, 9 * c, 3 * c, c}});
  Layout out = {kBf16, {1, n, 1, h, w}, {h * w * n, 1, h * w * n, w * n, n}};
  const auto y = g.in_memory(kConvY, out);
  const auto bias = g.in_memory(kConvBias, Layout{kBf16, {1, n, 1, 1, 1}, {n, 1, n, n, n}});
  out.type = CUDNN_DATA_FLOAT;
  const auto sum = g.between(out);
  constexpr std::array<std::int64_t, 3> kPad = {0, 1, 1}, kStep = {1, 1, 1};
  g.convolution(x, filter, sum, kPad, kPad, kStep);
  g.pointwise(CUDNN_POINTWISE_ADD, sum, bias, y);
  return g;
}

std::int64_t workspace_of_part(const ConvFrame& a, std::string_view gpu_properties) {
  const CudnnTarget target(gpu_properties);
  CudnnGraph whole = conv_graph(a, a.chosen_height), part = conv_graph(a, a.height);
  std::vector<CudnnObject> configurations = whole.configurations(target);
  prefer(configurations, kMaxWithoutPartialSums);
  for (const CudnnObject& c : configurations) {
    if (!is_deterministic(c) || workspace_of(c) > kConvWorkspace) continue;
    try {
      const CudnnChoice choice = without_workspace(choice_of(c));
      return std::max(workspace_of(c),
                      workspace_of(part.configuration(target, choice, "part of a frame")));
    } catch (const Error&) {
      return -1;
    }
  }
  return -1;
}

}  // namespace ballast::ops::cuda
