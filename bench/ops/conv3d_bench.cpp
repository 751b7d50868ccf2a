#include "bench/support/row_bench.h"
#include "ops/conv3d/conv3d.h"

namespace ballast::ops::conv3d_bench {
namespace {

using support::BenchTensor;

// One frame of a causal 3x3x3 convolution with two frames of history.
void causal(benchmark::State& state, DType dtype) {
  const std::int64_t channels = state.range(0), height = state.range(1), width = state.range(2);
  const ConvGeometry g = {.kernel = {3, 3, 3}, .pad = {2, 1, 1}};
  BenchTensor x(dtype, {1, height, width, channels}), history(dtype, {2, height, width, channels});
  BenchTensor y(dtype, {1, height, width, channels}), w(dtype, {channels, g.row(channels)});
  const ConvSize size = {.x = x.view().shape,
                         .y = y.view().shape,
                         .x_dtype = dtype,
                         .y_dtype = dtype,
                         .w = dtype,
                         .geometry = g,
                         .threads = 1,
                         .device = x.view().device};
  BenchTensor memory(DType::u8, {conv3d_workspace(size) + 256});
  TensorView workspace = memory.view();
  const auto misfit = reinterpret_cast<std::uintptr_t>(workspace.data) % 256;
  workspace.data += 256 - misfit;
  workspace.shape[0] -= 256;
  support::measure(state, {&x, &y, &w}, [&](Stream stream) {
    conv3d({.x = x.view(),
            .history = history.view(),
            .w = w.view(),
            .y = y.view(),
            .workspace = workspace,
            .geometry = g},
           stream);
  });
}

BENCHMARK_CAPTURE(causal, f32, DType::f32)->Name("conv3d/f32")->Args({96, 60, 104});
BENCHMARK_CAPTURE(causal, bf16, DType::bf16)->Name("conv3d/bf16")->Args({384, 60, 104});

}  // namespace
}  // namespace ballast::ops::conv3d_bench
