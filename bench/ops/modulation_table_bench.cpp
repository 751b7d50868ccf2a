#include "bench/support/tensor_memory.h"
#include "ops/modulation_table.h"

namespace ballast::ops {
namespace {

using bench::measure_traffic;
using bench::TensorMemory;

// The 14B model: six rows of width 5120, for one sample or for two timesteps.
void bench_modulation_table(benchmark::State& state, bool backward) {
  const std::int64_t timesteps = state.range(0), width = 5120;
  ThreadPool pool(1);
  TensorMemory modulation(DType::f32, {6, width}), e(DType::f32, {timesteps, 6 * width});
  TensorMemory m(DType::f32, {6, timesteps, width});
  if (backward) {
    measure_traffic(state, m.bytes() + 2 * e.bytes() + 2 * modulation.bytes(), [&] {
      modulation_table_backward({.dm = m.view(), .de = e.view(), .dmodulation = modulation.view()},
                                {.pool = &pool});
    });
  } else {
    measure_traffic(state, m.bytes() + e.bytes() + modulation.bytes(), [&] {
      modulation_table({.modulation = modulation.view(), .e = e.view(), .m = m.view()},
                       {.pool = &pool});
    });
  }
}
BENCHMARK_CAPTURE(bench_modulation_table, forward, false)->Arg(1)->Arg(2);
BENCHMARK_CAPTURE(bench_modulation_table, backward, true)->Arg(1)->Arg(2);

}  // namespace
}  // namespace ballast::ops
