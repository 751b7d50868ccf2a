#include "bench/support/tensor_memory.h"
#include "ops/global_norm.h"

namespace ballast::ops {
namespace {

using bench::measure_traffic;
using bench::TensorMemory;

void bench_sum_squares(benchmark::State& state, DType dtype) {
  ThreadPool pool(static_cast<int>(state.range(0)));
  TensorMemory x(dtype, {5120 * 1024}), sum(DType::f64, {1});
  const SumSquares a = {.x = x.view(), .sum = sum.view()};
  measure_traffic(state, x.bytes(), [&] { sum_squares(a, {.pool = &pool}); });
}

void bench_scale_by(benchmark::State& state, DType dtype) {
  ThreadPool pool(static_cast<int>(state.range(0)));
  TensorMemory x(dtype, {5120 * 1024});
  const float one = 1;  // any other factor would drive the numbers out of range
  const ScaleBy a = {.factor = {reinterpret_cast<const std::byte*>(&one), DType::f32, {1}},
                     .x = x.view()};
  measure_traffic(state, 2 * x.bytes(), [&] { scale_by(a, {.pool = &pool}); });
}
BENCHMARK_CAPTURE(bench_sum_squares, f32, DType::f32)->Arg(1)->Arg(2)->UseRealTime();
BENCHMARK_CAPTURE(bench_sum_squares, bf16, DType::bf16)->Arg(1)->UseRealTime();
BENCHMARK_CAPTURE(bench_scale_by, f32, DType::f32)->Arg(1)->UseRealTime();

}  // namespace
}  // namespace ballast::ops
