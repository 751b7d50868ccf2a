#include <benchmark/benchmark.h>

#include <vector>

#include "core/convert.h"
#include "core/random.h"
#include "core/thread_pool.h"
#include "core/to_size.h"
#include "ops/linear/quantize_rows.h"

namespace ballast {
namespace {

void quantize_bench(benchmark::State& state, DType from, DType to) {
  const std::int64_t rows = 512, columns = 5120;
  std::vector<float> values(to_size(rows * columns));
  fill_uniform(random_source(1, "bench", 0, "w"), 0, values.data(), rows * columns);
  std::vector<std::byte> w(values.size() * size_of(from)), q(values.size());
  convert(values.data(), DType::f32, w.data(), from, rows * columns);
  std::vector<float> scale(to_size(rows));
  ThreadPool pool(static_cast<int>(state.range(0)));
  for (auto _ : state) {
    ops::quantize_rows(
        {.w = ConstTensorView(w.data(), from, {rows, columns}),
         .q = TensorView(q.data(), to, {rows, columns}),
         .scale = TensorView(reinterpret_cast<std::byte*>(scale.data()), DType::f32, {rows})},
        {.pool = &pool});
    benchmark::ClobberMemory();
  }
  state.counters["GB/s"] = benchmark::Counter(static_cast<double>(w.size() + q.size()) * 1e-9,
                                              benchmark::Counter::kIsIterationInvariantRate);
}

BENCHMARK_CAPTURE(quantize_bench, bf16_to_i8, DType::bf16, DType::i8)
    ->Arg(1)
    ->Arg(2)
    ->UseRealTime();
BENCHMARK_CAPTURE(quantize_bench, f32_to_i8, DType::f32, DType::i8)->Arg(1)->UseRealTime();
BENCHMARK_CAPTURE(quantize_bench, bf16_to_f8_e4m3, DType::bf16, DType::f8_e4m3)
    ->Arg(1)
    ->Arg(2)
    ->UseRealTime();

}  // namespace
}  // namespace ballast
