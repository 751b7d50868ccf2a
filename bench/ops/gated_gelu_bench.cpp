#include "bench/support/row_bench.h"
#include "ops/gated_gelu.h"

namespace ballast::ops::gated_gelu_bench {
namespace {

using support::BenchTensor;

void forward(benchmark::State& state, DType dtype) {
  const std::int64_t rows = 256, width = state.range(0);
  BenchTensor a(dtype, {rows, width}), b(dtype, {rows, width}), z(dtype, {rows, width});
  support::measure(state, {&a, &b, &z}, [&](Stream stream) {
    gated_gelu({.a = a.view(), .b = b.view(), .z = z.view()}, stream);
  });
}

BENCHMARK_CAPTURE(forward, f32, DType::f32)->Name("gated_gelu/f32")->Arg(10240);
BENCHMARK_CAPTURE(forward, bf16, DType::bf16)->Name("gated_gelu/bf16")->Arg(10240);

}  // namespace
}  // namespace ballast::ops::gated_gelu_bench
