#include "bench/support/tensor_memory.h"
#include "ops/noise.h"

namespace ballast::ops {
namespace {

using bench::measure_traffic;
using bench::TensorMemory;

void bench_noise(benchmark::State& state) {
  ThreadPool pool(static_cast<int>(state.range(0)));
  TensorMemory to(DType::f32, {1 << 20});
  const Noise a = {.to = to.view(), .source = random_source(1, "noise", 1, "latent")};
  measure_traffic(state, to.bytes(), [&] { noise(a, {.pool = &pool}); });
}
BENCHMARK(bench_noise)->Arg(1)->Arg(2)->UseRealTime();

}  // namespace
}  // namespace ballast::ops
