#include "ops/conv3d_cuda.h"

#include <array>
#include <map>
#include <tuple>
#include <vector>

#include "core/error.h"
#include "memory/gpu.h"
#include "ops/cudnn_graph.h"

namespace ballast::ops::cuda {
namespace {

enum ConvTensor : std::int64_t { kX = 1, kW, kY, kBias };
constexpr std::array<std::int64_t, 4> kTensors = {kX, kW, kY, kBias};

CudnnGraph frame_graph(const ConvFrame& a) {
  const std::int64_t c = a.channels, n = a.outputs, h = a.height, w = a.width;
  constexpr cudnnDataType_t kBf16 = CUDNN_DATA_BFLOAT16;
  using Layout = CudnnGraph::AnyLayout;
  CudnnGraph g;
  const auto x =
      g.in_memory(kX, Layout{kBf16, {1, c, 3, h, w}, {3 * h * w * c, 1, h * w * c, w * c, c}});
  const auto filter = g.in_memory(kW, Layout{kBf16, {n, c, 3, 3, 3}, {27 * c, 1, 9 * c, 3 * c, c}});
  Layout out = {kBf16, {1, n, 1, h, w}, {h * w * n, 1, h * w * n, w * n, n}};
  const auto y = g.in_memory(kY, out);
  const auto bias = g.in_memory(kBias, Layout{kBf16, {1, n, 1, 1, 1}, {n, 1, n, n, n}});
  out.type = CUDNN_DATA_FLOAT;
  const auto sum = g.between(out);
  constexpr std::array<std::int64_t, 3> kPad = {0, 1, 1}, kStep = {1, 1, 1};
  g.convolution(x, filter, sum, kPad, kPad, kStep);
  g.pointwise(CUDNN_POINTWISE_ADD, sum, bias, y);
  return g;
}

// A queue's plans, one per size, and its packs, one per call.
class ConvPlans {
 public:
  explicit ConvPlans(GpuQueue& queue) : queue_(queue) {}

  void prepare(const ConvFrame& a) { prepared(a); }
  void run(const ConvFrame& a) {
    const Prepared& p = prepared(a);
    p.plan->run(handle(), p.pack);
  }

 private:
  struct Prepared {
    const CudnnPlan* plan = nullptr;
    CudnnPack pack;
  };
  using Size = std::array<std::int64_t, 4>;
  using Call = std::tuple<Size, const void*, const void*, const void*, const void*, const void*>;

  cudnnHandle_t handle() { return queue_.local<CudnnHandle>().raw(); }

  const Prepared& prepared(const ConvFrame& a) {
    const Size size = {a.height, a.width, a.channels, a.outputs};
    const Call call(size, a.x, a.w, a.y, a.bias, a.workspace);
    const auto found = packs_.find(call);
    if (found != packs_.end()) return found->second;
    auto plan = plans_.find(size);
    if (plan == plans_.end()) {
      const std::string what = fmt::format("a convolution of {} x {} pixels, {} to {} channels",
                                           a.height, a.width, a.channels, a.outputs);
      plan = plans_.try_emplace(size, frame_graph(a), handle(), kConvWorkspace, what, true).first;
    }
    const std::array<void*, 4> places = {const_cast<void*>(a.x), const_cast<void*>(a.w), a.y,
                                         const_cast<void*>(a.bias)};
    Prepared p = {.plan = &plan->second, .pack = CudnnPack(kTensors, places, a.workspace)};
    return packs_.emplace(call, std::move(p)).first->second;
  }

  GpuQueue& queue_;
  std::map<Size, CudnnPlan> plans_;
  std::map<Call, Prepared> packs_;
};

}  // namespace

void convolve(const ConvFrame& a, GpuQueue& queue, bool prepare) {
  ConvPlans& plans = queue.local<ConvPlans>();
  prepare ? plans.prepare(a) : plans.run(a);
}

}  // namespace ballast::ops::cuda
