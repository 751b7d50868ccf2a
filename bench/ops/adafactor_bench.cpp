#include "bench/support/tensor_memory.h"
#include "ops/adafactor.h"

namespace ballast::ops {
namespace {

using bench::measure_traffic;
using bench::TensorMemory;

void bench_adafactor(benchmark::State& state, DType type) {
  ThreadPool pool(static_cast<int>(state.range(0)));
  const Shape shape = {1024, 5120};
  TensorMemory p(type, shape), g(type, shape);
  TensorMemory row(DType::f32, {1024}), column(DType::f32, {5120});
  TensorMemory workspace(DType::u8, {adafactor_workspace(shape)});
  std::int64_t step = 0;
  // g is read four times: for rows, columns, the size of the step, and the step.
  measure_traffic(state, 3 * p.bytes() + 4 * g.bytes(), [&] {
    adafactor({.p = p.view(),
               .row = row.view(),
               .column = column.view(),
               .v = {},
               .g = g.view(),
               .grad_scale = {},
               .workspace = workspace.view(),
               .options = {},
               .step = ++step,
               .learning_rate = 1e-5},
              {.pool = &pool});
  });
}
BENCHMARK_CAPTURE(bench_adafactor, f32, DType::f32)->Arg(1)->Arg(2)->UseRealTime();
BENCHMARK_CAPTURE(bench_adafactor, bf16, DType::bf16)->Arg(1)->Arg(2)->UseRealTime();

}  // namespace
}  // namespace ballast::ops
