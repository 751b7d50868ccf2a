#include "bench/support/tensor_memory.h"
#include "ops/ema.h"

namespace ballast::ops {
namespace {

using bench::measure_traffic;
using bench::TensorMemory;

void bench_ema(benchmark::State& state, DType type) {
  constexpr std::int64_t kCount = 5120 * 1024;
  ThreadPool pool(static_cast<int>(state.range(0)));
  TensorMemory p(type, {kCount}), shadow(DType::f32, {kCount});
  measure_traffic(state, p.bytes() + 2 * shadow.bytes(), [&] {
    ema({.p = p.view(), .shadow = shadow.view(), .decay = 0.99}, {.pool = &pool});
  });
}
BENCHMARK_CAPTURE(bench_ema, f32, DType::f32)->Arg(1)->Arg(2)->UseRealTime();
BENCHMARK_CAPTURE(bench_ema, bf16, DType::bf16)->Arg(1)->Arg(2)->UseRealTime();

}  // namespace
}  // namespace ballast::ops
