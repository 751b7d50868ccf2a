#include "bench/support/tensor_memory.h"
#include "ops/sgd.h"

namespace ballast::ops {
namespace {

using bench::measure_traffic;
using bench::TensorMemory;

void bench_sgd(benchmark::State& state, DType type) {
  constexpr std::int64_t kCount = 5120 * 1024;
  ThreadPool pool(static_cast<int>(state.range(0)));
  TensorMemory p(type, {kCount}), b(type, {kCount}), g(type, {kCount});
  measure_traffic(state, 2 * (p.bytes() + b.bytes()) + g.bytes(), [&] {
    sgd({.p = p.view(),
         .b = b.view(),
         .g = g.view(),
         .grad_scale = {},
         .options = {.momentum = 0.9},
         .learning_rate = 1e-9},
        {.pool = &pool});
  });
}
BENCHMARK_CAPTURE(bench_sgd, f32, DType::f32)->Arg(1)->Arg(2)->UseRealTime();
BENCHMARK_CAPTURE(bench_sgd, bf16, DType::bf16)->Arg(1)->Arg(2)->UseRealTime();

}  // namespace
}  // namespace ballast::ops
