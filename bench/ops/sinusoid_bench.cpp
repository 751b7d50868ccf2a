#include <benchmark/benchmark.h>

#include <vector>

#include "core/thread_pool.h"
#include "core/to_size.h"
#include "ops/sinusoid.h"

namespace ballast::ops {
namespace {

void bench_sinusoid(benchmark::State& state) {
  const std::int64_t rows = state.range(0), width = 256;
  std::vector<double> t(to_size(rows), 731.0);
  std::vector<float> y(to_size(rows * width));
  ThreadPool pool(1);
  const Sinusoid a = {.t = {reinterpret_cast<const std::byte*>(t.data()), DType::f64, {rows}},
                      .y = {reinterpret_cast<std::byte*>(y.data()), DType::f32, {rows, width}}};
  for (auto _ : state) sinusoid(a, {.pool = &pool});
  state.counters["values/s"] = benchmark::Counter(
      static_cast<double>(rows * width * state.iterations()), benchmark::Counter::kIsRate);
}
BENCHMARK(bench_sinusoid)->Arg(1)->Arg(64)->Name("sinusoid");

}  // namespace
}  // namespace ballast::ops
