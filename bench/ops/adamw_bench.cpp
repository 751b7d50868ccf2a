#include "bench/support/tensor_memory.h"
#include "ops/adamw.h"

namespace ballast::ops {
namespace {

using bench::measure_traffic;
using bench::TensorMemory;

void bench_adamw(benchmark::State& state, DType g_type) {
  constexpr std::int64_t kCount = 5120 * 1024;
  ThreadPool pool(static_cast<int>(state.range(0)));
  TensorMemory p(DType::f32, {kCount}), m(DType::f32, {kCount}), v(DType::f32, {kCount});
  TensorMemory g(g_type, {kCount});
  std::int64_t step = 0;
  measure_traffic(state, 2 * (p.bytes() + m.bytes() + v.bytes()) + g.bytes(), [&] {
    adamw({.p = p.view(),
           .m = m.view(),
           .v = v.view(),
           .g = g.view(),
           .grad_scale = {},
           .options = {},
           .step = ++step,
           .learning_rate = 1e-5},
          {.pool = &pool});
  });
}
BENCHMARK_CAPTURE(bench_adamw, f32, DType::f32)->Arg(1)->Arg(2)->UseRealTime();
BENCHMARK_CAPTURE(bench_adamw, bf16, DType::bf16)->Arg(1)->Arg(2)->UseRealTime();

}  // namespace
}  // namespace ballast::ops
