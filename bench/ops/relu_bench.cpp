#include "bench/support/row_bench.h"
#include "ops/relu.h"

namespace ballast::ops::relu_bench {
namespace {

using support::BenchTensor;

void forward(benchmark::State& state, DType dtype) {
  const std::int64_t rows = 256, width = state.range(0);
  BenchTensor x(dtype, {rows, width}), y(dtype, {rows, width});
  support::measure(state, {&x, &y},
                   [&](Stream stream) { relu({.x = x.view(), .y = y.view()}, stream); });
}

BENCHMARK_CAPTURE(forward, f32, DType::f32)->Name("relu/f32")->Arg(4096);
BENCHMARK_CAPTURE(forward, bf16, DType::bf16)->Name("relu/bf16")->Arg(4096);

}  // namespace
}  // namespace ballast::ops::relu_bench
