#include "ops/conv3d/conv3d_cuda.h"

#include <algorithm>
#include <array>
#include <map>
#include <tuple>

#include "core/error.h"
#include "memory/gpu.h"
#include "ops/conv3d/conv3d_graph.h"
#include "ops/kernels/cudnn_graph.h"
#include "ops/kernels/prepared_table.h"

namespace ballast::ops::cuda {
namespace {

// A queue's plans, one per size, and its packs, one per call.
class ConvPlans {
 public:
  explicit ConvPlans(GpuQueue& queue) : queue_(queue) {}

  void prepare(const ConvFrame& a) { prepared(a); }
  void run(const ConvFrame& a) {
    const Prepared& p = prepared(a);
    p.plan->run(cudnn().raw(), p.pack);
  }

 private:
  struct Prepared {
    const CudnnPlan* plan = nullptr;
    CudnnPack pack;
  };
  using Size = std::array<std::int64_t, 5>;
  using Call = std::tuple<Size, const void*, const void*, const void*, const void*, const void*>;

  CudnnHandle& cudnn() { return queue_.local<CudnnHandle>(); }

  const Prepared& prepared(const ConvFrame& a) {
    const Call call({a.height, a.chosen_height, a.width, a.channels, a.outputs}, a.x, a.w, a.y,
                    a.bias, a.workspace);
    if (const Prepared* const found = packs_.find(call)) return *found;
    const std::lock_guard alone(cudnn().making());
    if (const Prepared* const found = packs_.find(call)) return *found;  // another thread made it
    const CudnnPlan& plan = plan_of(a, a.height);
    const std::array<void*, 4> places = {const_cast<void*>(a.x), const_cast<void*>(a.w), a.y,
                                         const_cast<void*>(a.bias)};
    Prepared p = {.plan = &plan, .pack = CudnnPack(kConvTensors, places, a.workspace)};
    return packs_.add(call, std::move(p));
  }

  // Part of a frame is computed as the whole one would be: by its kernel, set up alike.
  const CudnnPlan& plan_of(const ConvFrame& a, std::int64_t height) {
    const Size size = {height, a.chosen_height, a.width, a.channels, a.outputs};
    const auto found = plans_.find(size);
    if (found != plans_.end()) return found->second;
    const std::string what = fmt::format("a convolution of {} x {} pixels, {} to {} channels",
                                         height, a.width, a.channels, a.outputs);
    CudnnGraph graph = conv_graph(a, height);
    if (height == a.chosen_height) {
      CudnnPlan plan(std::move(graph), cudnn().maker(), kConvWorkspace, what,
                     kMaxWithoutPartialSums);
      return plans_.emplace(size, std::move(plan)).first->second;
    }
    const CudnnPlan& whole = plan_of(a, a.chosen_height);
    CudnnPlan plan(std::move(graph), cudnn().maker(), what, without_workspace(whole.choice()));
    if (std::max(whole.workspace(), plan.workspace()) > kMaxWithoutPartialSums) {
      fail(ErrorCode::device,
           fmt::format("{}: part of {} x {}, which cuDNN computes with partial sums ({} bytes for "
                       "the whole, {} for the part): bands would change bits",
                       what, a.chosen_height, a.width, whole.workspace(), plan.workspace()),
           {{"no --bands", "whole images take what is planned for them"},
            {"--dtype f32", "takes other kernels"}});
    }
    return plans_.emplace(size, std::move(plan)).first->second;
  }

  GpuQueue& queue_;
  std::map<Size, CudnnPlan> plans_;  // of whoever makes one
  PreparedTable<Call, Prepared> packs_;
};

}  // namespace

void convolve(const ConvFrame& a, GpuQueue& queue, bool prepare) {
  ConvPlans& plans = queue.local<ConvPlans>();
  prepare ? plans.prepare(a) : plans.run(a);
}

}  // namespace ballast::ops::cuda
