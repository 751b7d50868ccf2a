#include "bench/support/row_bench.h"
#include "ops/gelu.h"

namespace ballast::ops::gelu_bench {
namespace {

using support::BenchTensor;

void forward(benchmark::State& state, DType dtype) {
  const std::int64_t rows = 256, width = state.range(0);
  BenchTensor x(dtype, {rows, width}), y(dtype, {rows, width});
  support::measure(state, {&x, &y},
                   [&](Stream stream) { gelu({.x = x.view(), .y = y.view()}, stream); });
}

void backward(benchmark::State& state, DType dtype) {
  const std::int64_t rows = 256, width = state.range(0);
  BenchTensor x(dtype, {rows, width}), dy(dtype, {rows, width}), dx(dtype, {rows, width});
  support::measure(state, {&x, &dy, &dx}, [&](Stream stream) {
    gelu_backward({.x = x.view(), .dy = dy.view(), .dx = dx.view()}, stream);
  });
}

void backward_and_forward(benchmark::State& state, DType dtype) {
  const std::int64_t rows = 256, width = state.range(0);
  BenchTensor x(dtype, {rows, width}), dy(dtype, {rows, width});
  BenchTensor dx(dtype, {rows, width}), y(dtype, {rows, width});
  support::measure(state, {&x, &dy, &dx, &y}, [&](Stream stream) {
    gelu_backward({.x = x.view(), .dy = dy.view(), .dx = dx.view(), .y = y.view()}, stream);
  });
}

BENCHMARK_CAPTURE(forward, f32, DType::f32)->Name("gelu/f32")->Arg(8960)->Arg(13824);
BENCHMARK_CAPTURE(forward, bf16, DType::bf16)->Name("gelu/bf16")->Arg(13824);
BENCHMARK_CAPTURE(backward, f32, DType::f32)->Name("gelu_backward/f32")->Arg(13824);
BENCHMARK_CAPTURE(backward, bf16, DType::bf16)->Name("gelu_backward/bf16")->Arg(13824);
BENCHMARK_CAPTURE(backward_and_forward, bf16, DType::bf16)
    ->Name("gelu_backward_and_gelu/bf16")
    ->Arg(13824);

}  // namespace
}  // namespace ballast::ops::gelu_bench
