#include "bench/support/tensor_memory.h"
#include "ops/flow_noise.h"

namespace ballast::ops {
namespace {

using bench::measure_traffic;
using bench::TensorMemory;

void bench_flow_noise(benchmark::State& state) {
  const Shape shape = {16, 21, 60, 104};  // 480p, 81 frames
  ThreadPool pool(static_cast<int>(state.range(0)));
  TensorMemory x0(DType::f32, shape), noise(DType::f32, shape), t(DType::f32, {1});
  TensorMemory x_t(DType::f32, shape), target(DType::f32, shape);
  const FlowNoise a = {.x0 = x0.view(),
                       .noise = noise.view(),
                       .t = t.view(),
                       .x_t = x_t.view(),
                       .target = target.view()};
  measure_traffic(state, 4 * x0.bytes(), [&] { flow_noise(a, {.pool = &pool}); });
}
BENCHMARK(bench_flow_noise)->Arg(1)->Arg(2)->UseRealTime();

}  // namespace
}  // namespace ballast::ops
