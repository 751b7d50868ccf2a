#include "ops/conv3d/conv3d_graph.h"

#include <gtest/gtest.h>

#include "ops/kernels/on_device.h"
#include "tests/support/cudnn_without_gpu.h"

// These tests need cuDNN and no GPU.
namespace ballast::ops::cuda {
namespace {

class ConvGraphs : public support::CudnnWithoutGpu {};

INSTANTIATE_TEST_SUITE_P(Gpus, ConvGraphs, testing::ValuesIn(support::kGpus),
                         [](const auto& test) { return std::string(test.param.name); });

// The layers that may be computed in bands, of a whole image and of one of 2 and of 6 bands.
TEST_P(ConvGraphs, TheKernelOfAWholeFrameComputesABandOfIt) {
  struct Layer {
    std::int64_t channels, outputs, height, width;
  };
  for (const Layer& l :
       {Layer{192, 192, 240, 416}, Layer{96, 96, 480, 832},  // Wan2.1
        Layer{96, 192, 240, 416}, Layer{192, 192, 120, 208}, Layer{160, 160, 352, 640},
        Layer{160, 320, 176, 320}, Layer{1024, 512, 176, 320}, Layer{512, 512, 176, 320},
        Layer{512, 256, 352, 640}, Layer{256, 256, 352, 640}}) {
    for (const std::int64_t rows : {l.height * 11 / 20, l.height / 4}) {
      if constexpr (kBuiltWithCuda) {
        const std::int64_t bytes = workspace_of_part({.height = rows,
                                                      .chosen_height = l.height,
                                                      .width = l.width,
                                                      .channels = l.channels,
                                                      .outputs = l.outputs},
                                                     support::properties(GetParam()));
        EXPECT_GE(bytes, 0) << l.channels << " to " << l.outputs << ", " << rows << " rows";
        EXPECT_LE(bytes, kMaxWithoutPartialSums)
            << l.channels << " to " << l.outputs << ", " << rows << " rows";
      }
    }
  }
}

}  // namespace
}  // namespace ballast::ops::cuda
