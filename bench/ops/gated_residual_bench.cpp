#include "bench/support/row_bench.h"
#include "ops/gated_residual.h"

namespace ballast::ops::gated_residual_bench {
namespace {

using support::BenchTensor;

void forward(benchmark::State& state, DType y_dtype) {
  const std::int64_t rows = 512, width = state.range(0);
  BenchTensor x(DType::f32, {rows, width}), y(y_dtype, {rows, width}), gate(DType::f32, {1, width});
  support::measure(state, {&x, &y, &x}, [&](Stream stream) {
    gated_residual({.x = x.view(), .y = y.view(), .gate = gate.view(), .out = x.view()}, stream);
  });
}

void backward(benchmark::State& state, DType y_dtype, bool frozen) {
  const std::int64_t rows = 512, width = state.range(0);
  BenchTensor dout(DType::f32, {rows, width}), y(y_dtype, {rows, width}),
      dy(y_dtype, {rows, width});
  BenchTensor gate(DType::f32, {1, width}), dgate(DType::f32, {1, width});
  support::measure(state, {&dout, &dy}, [&](Stream stream) {
    gated_residual_backward({.dout = dout.view(),
                             .gate = gate.view(),
                             .dy = dy.view(),
                             .y = y.view(),
                             .dgate = frozen ? TensorView() : dgate.view()},
                            stream);
  });
}

BENCHMARK_CAPTURE(forward, f32, DType::f32)->Name("gated_residual/f32")->Arg(1536)->Arg(5120);
BENCHMARK_CAPTURE(forward, bf16, DType::bf16)->Name("gated_residual/f32+bf16")->Arg(5120);
BENCHMARK_CAPTURE(backward, f32, DType::f32, true)->Name("gated_residual_backward/f32")->Arg(5120);
BENCHMARK_CAPTURE(backward, dgate, DType::f32, false)
    ->Name("gated_residual_backward/f32+dgate")
    ->Arg(5120);

}  // namespace
}  // namespace ballast::ops::gated_residual_bench
