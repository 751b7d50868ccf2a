#include <benchmark/benchmark.h>

#include <vector>

#include "core/thread_pool.h"
#include "core/to_size.h"
#include "ops/fill.h"

namespace ballast {
namespace {

void fill_bench(benchmark::State& state, DType dtype) {
  const std::int64_t n = 4 << 20;
  std::vector<std::byte> b(to_size(n) * size_of(dtype));
  ThreadPool pool(static_cast<int>(state.range(0)));
  for (auto _ : state) {
    ops::fill({.to = TensorView(b.data(), dtype, {n}), .value = 1.5f}, {.pool = &pool});
    benchmark::ClobberMemory();
  }
  state.counters["GB/s"] = benchmark::Counter(static_cast<double>(b.size()) * 1e-9,
                                              benchmark::Counter::kIsIterationInvariantRate);
}

BENCHMARK_CAPTURE(fill_bench, f32, DType::f32)->Arg(1)->Arg(2)->UseRealTime();
BENCHMARK_CAPTURE(fill_bench, bf16, DType::bf16)->Arg(1)->Arg(2)->UseRealTime();

}  // namespace
}  // namespace ballast
