#include "bench/support/tensor_memory.h"
#include "ops/stableadamw_scale.h"

namespace ballast::ops {
namespace {

using bench::measure_traffic;
using bench::TensorMemory;

void bench_stableadamw_scale(benchmark::State& state, DType type) {
  ThreadPool pool(static_cast<int>(state.range(0)));
  const Shape shape = {1024, 5120};
  TensorMemory v(type, shape), g(type, shape), rates(DType::f32, {2});
  std::int64_t step = 0;
  measure_traffic(state, v.bytes() + g.bytes(), [&] {
    stableadamw_scale({.v = v.view(),
                       .g = g.view(),
                       .grad_scale = {},
                       .rates = rates.view(),
                       .options = {.debias = Debias::betas},
                       .step = ++step,
                       .learning_rate = 1e-5},
                      {.pool = &pool});
  });
}
BENCHMARK_CAPTURE(bench_stableadamw_scale, f32, DType::f32)->Arg(1)->Arg(2)->UseRealTime();
BENCHMARK_CAPTURE(bench_stableadamw_scale, bf16, DType::bf16)->Arg(1)->Arg(2)->UseRealTime();

}  // namespace
}  // namespace ballast::ops
