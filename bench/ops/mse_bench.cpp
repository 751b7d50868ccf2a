#include "bench/support/tensor_memory.h"
#include "ops/mse.h"

namespace ballast::ops {
namespace {

using bench::measure_traffic;
using bench::TensorMemory;

void bench_mse(benchmark::State& state, DType dtype, bool gradient) {
  constexpr std::int64_t kCount = 1 << 21;  // a 480p latent of 81 frames
  ThreadPool pool(static_cast<int>(state.range(0)));
  TensorMemory pred(dtype, {kCount}), target(DType::f32, {kCount}), dpred(dtype, {kCount});
  TensorMemory loss(DType::f64, {1});
  const Mse a = {.pred = pred.view(),
                 .target = target.view(),
                 .weight = 1.0 / kCount,
                 .loss = loss.view(),
                 .dpred = gradient ? dpred.view() : TensorView()};
  measure_traffic(state, pred.bytes() + target.bytes() + (gradient ? dpred.bytes() : 0),
                  [&] { mse(a, {.pool = &pool}); });
}
BENCHMARK_CAPTURE(bench_mse, f32, DType::f32, false)->Arg(1)->Arg(2)->UseRealTime();
BENCHMARK_CAPTURE(bench_mse, gradient_f32, DType::f32, true)->Arg(1)->UseRealTime();
BENCHMARK_CAPTURE(bench_mse, gradient_bf16, DType::bf16, true)->Arg(1)->UseRealTime();

}  // namespace
}  // namespace ballast::ops
