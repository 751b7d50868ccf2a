#include "bench/support/tensor_memory.h"
#include "ops/flow_loss.h"

namespace ballast::ops {
namespace {

using bench::measure_traffic;
using bench::TensorMemory;

struct Case {
  DType dtype = DType::f32;
  bool gradient = true, mask = false;
  LossKind kind = LossKind::mse;
};

void bench_flow_loss(benchmark::State& state, const Case& c) {
  constexpr std::int64_t kPlane = 1 << 17;  // 16 channels: a 480p latent of 81 frames
  const Shape shape = {16, kPlane};
  ThreadPool pool(static_cast<int>(state.range(0)));
  TensorMemory pred(c.dtype, shape), target(DType::f32, shape), dpred(c.dtype, shape);
  TensorMemory loss(DType::f64, {1}), mask(DType::f32, {kPlane});
  const FlowLoss a = {.pred = pred.view(),
                      .target = target.view(),
                      .mask = c.mask ? mask.view() : TensorView(),
                      .rho = {c.kind, 1},
                      .weight = 1.0 / static_cast<double>(shape.elements()),
                      .loss = loss.view(),
                      .dpred = c.gradient ? dpred.view() : TensorView()};
  measure_traffic(state, pred.bytes() + target.bytes() + (c.gradient ? dpred.bytes() : 0),
                  [&] { flow_loss(a, {.pool = &pool}); });
}
BENCHMARK_CAPTURE(bench_flow_loss, f32, Case{.gradient = false})->Arg(1)->Arg(2)->UseRealTime();
BENCHMARK_CAPTURE(bench_flow_loss, gradient_f32, Case{})->Arg(1)->UseRealTime();
BENCHMARK_CAPTURE(bench_flow_loss, gradient_bf16, Case{.dtype = DType::bf16})
    ->Arg(1)
    ->UseRealTime();
BENCHMARK_CAPTURE(bench_flow_loss, masked_huber_f32, Case{.mask = true, .kind = LossKind::huber})
    ->Arg(1)
    ->UseRealTime();

}  // namespace
}  // namespace ballast::ops
