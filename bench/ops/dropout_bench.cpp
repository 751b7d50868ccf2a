#include "bench/support/tensor_memory.h"
#include "ops/dropout.h"

namespace ballast::ops {
namespace {

using bench::measure_traffic;
using bench::TensorMemory;

void bench_dropout(benchmark::State& state, DType dtype) {
  ThreadPool pool(static_cast<int>(state.range(0)));
  const Shape shape = {512, 5120};  // a chunk of tokens of the 14B model
  TensorMemory x(dtype, shape), y(dtype, shape);
  const Dropout a = {.x = x.view(),
                     .y = y.view(),
                     .probability = 0.1,
                     .source = random_source(1, "dropout", 1, "blocks.0.ffn.0")};
  measure_traffic(state, x.bytes() + y.bytes(), [&] { dropout(a, {.pool = &pool}); });
}
BENCHMARK_CAPTURE(bench_dropout, f32, DType::f32)->Arg(1)->Arg(2)->UseRealTime();
BENCHMARK_CAPTURE(bench_dropout, bf16, DType::bf16)->Arg(1)->UseRealTime();

}  // namespace
}  // namespace ballast::ops
