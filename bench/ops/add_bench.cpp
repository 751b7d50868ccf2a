#include "bench/support/tensor_memory.h"
#include "ops/add.h"

namespace ballast::ops {
namespace {

using bench::measure_traffic;
using bench::TensorMemory;

void bench_add(benchmark::State& state, DType x_type, DType y_type) {
  ThreadPool pool(static_cast<int>(state.range(0)));
  TensorMemory x(x_type, {1024, 5120}), y(y_type, {1024, 5120});
  const AddInto a = {.x = x.view(), .y = y.view(), .alpha = 1e-3f};
  measure_traffic(state, x.bytes() + 2 * y.bytes(), [&] { add_into(a, {.pool = &pool}); });
}
BENCHMARK_CAPTURE(bench_add, f32_to_f32, DType::f32, DType::f32)->Arg(1)->Arg(2)->UseRealTime();
BENCHMARK_CAPTURE(bench_add, bf16_to_f32, DType::bf16, DType::f32)->Arg(1)->UseRealTime();
BENCHMARK_CAPTURE(bench_add, bf16_to_bf16, DType::bf16, DType::bf16)->Arg(1)->UseRealTime();

}  // namespace
}  // namespace ballast::ops
