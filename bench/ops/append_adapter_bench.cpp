#include "bench/support/tensor_memory.h"
#include "ops/linear/append_adapter.h"

namespace ballast::ops {
namespace {

using bench::measure_traffic;
using bench::TensorMemory;

// s B of a rank-16 adapter beside a square layer of the 14B model.
void bench_inlay(benchmark::State& state) {
  ThreadPool pool(static_cast<int>(state.range(0)));
  TensorMemory b(DType::f32, {5120, 16}), wide(DType::bf16, {5120, 5184});
  TensorView margin = wide.view();
  margin.data += 5120 * 2;
  margin.shape = {5120, 16};
  const AppendAdapter a = {.from = b.view(), .to = margin, .factor = 0.5f};
  measure_traffic(state, b.bytes() + 5120 * 16 * 2, [&] {
    append_adapter({&a, 1}, {.pool = &pool});
  });
}
BENCHMARK(bench_inlay)->Arg(1)->Arg(2)->UseRealTime();

}  // namespace
}  // namespace ballast::ops
