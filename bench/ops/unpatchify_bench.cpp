#include "bench/support/clip_of_tokens.h"
#include "bench/support/tensor_memory.h"
#include "ops/unpatchify.h"

namespace ballast::ops {
namespace {

using bench::kChannels, bench::kFrames, bench::kHeight, bench::kWidth, bench::kTokens;
using bench::measure_traffic;
using bench::TensorMemory;

void bench_unpatchify(benchmark::State& state, DType dtype, bool backward) {
  ThreadPool pool(static_cast<int>(state.range(0)));
  TensorMemory latent(DType::f32, {kChannels, kFrames, kHeight, kWidth});
  TensorMemory tokens(dtype, {kTokens, 4 * kChannels});
  measure_traffic(state, latent.bytes() + tokens.bytes(), [&] {
    if (backward) {
      unpatchify_backward({.dv = latent.view(), .dy = tokens.view()}, {.pool = &pool});
    } else {
      unpatchify({.y = tokens.view(), .v = latent.view()}, {.pool = &pool});
    }
  });
}
BENCHMARK_CAPTURE(bench_unpatchify, f32, DType::f32, false)->Arg(1)->Arg(2)->UseRealTime();
BENCHMARK_CAPTURE(bench_unpatchify, bf16, DType::bf16, false)->Arg(1)->Arg(2)->UseRealTime();
BENCHMARK_CAPTURE(bench_unpatchify, backward_f32, DType::f32, true)->Arg(1)->UseRealTime();
BENCHMARK_CAPTURE(bench_unpatchify, backward_bf16, DType::bf16, true)->Arg(1)->UseRealTime();

}  // namespace
}  // namespace ballast::ops
