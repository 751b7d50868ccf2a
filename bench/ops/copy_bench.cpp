#include <benchmark/benchmark.h>

#include <vector>

#include "core/thread_pool.h"
#include "core/to_size.h"
#include "ops/copy.h"

namespace ballast {
namespace {

void copy_bench(benchmark::State& state, DType from, DType to, bool transposed) {
  const std::int64_t rows = 2048, columns = 1024;
  std::vector<std::byte> a(to_size(rows * columns) * size_of(from), std::byte{0x3c});
  std::vector<std::byte> b(to_size(rows * columns) * size_of(to));
  ThreadPool pool(static_cast<int>(state.range(0)));
  ConstTensorView x(a.data(), from, {rows, columns});
  if (transposed) x.strides = {1, rows};
  for (auto _ : state) {
    ops::copy({.from = x, .to = TensorView(b.data(), to, {rows, columns})}, {.pool = &pool});
    benchmark::ClobberMemory();
  }
  state.counters["GB/s"] = benchmark::Counter(static_cast<double>(a.size() + b.size()) * 1e-9,
                                              benchmark::Counter::kIsIterationInvariantRate);
}

BENCHMARK_CAPTURE(copy_bench, f32, DType::f32, DType::f32, false)->Arg(1)->Arg(2)->UseRealTime();
BENCHMARK_CAPTURE(copy_bench, f32_to_bf16, DType::f32, DType::bf16, false)
    ->Arg(1)
    ->Arg(2)
    ->UseRealTime();
BENCHMARK_CAPTURE(copy_bench, bf16_to_f32, DType::bf16, DType::f32, false)
    ->Arg(1)
    ->Arg(2)
    ->UseRealTime();
BENCHMARK_CAPTURE(copy_bench, f32_to_f16, DType::f32, DType::f16, false)->Arg(1)->UseRealTime();
BENCHMARK_CAPTURE(copy_bench, f16_to_f32, DType::f16, DType::f32, false)->Arg(1)->UseRealTime();
BENCHMARK_CAPTURE(copy_bench, f8_e4m3_to_f32, DType::f8_e4m3, DType::f32, false)
    ->Arg(1)
    ->UseRealTime();
BENCHMARK_CAPTURE(copy_bench, f8_e4m3_to_bf16, DType::f8_e4m3, DType::bf16, false)
    ->Arg(1)
    ->UseRealTime();
BENCHMARK_CAPTURE(copy_bench, f32_to_f8_e4m3, DType::f32, DType::f8_e4m3, false)
    ->Arg(1)
    ->UseRealTime();
BENCHMARK_CAPTURE(copy_bench, f64_to_bf16, DType::f64, DType::bf16, false)->Arg(1)->UseRealTime();
BENCHMARK_CAPTURE(copy_bench, transposed_f32, DType::f32, DType::f32, true)->Arg(1)->UseRealTime();

}  // namespace
}  // namespace ballast
