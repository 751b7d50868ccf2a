#include "bench/support/row_bench.h"
#include "ops/residual_norm.h"

namespace ballast::ops::residual_norm_bench {
namespace {

using support::BenchTensor;

// x += y * gate, normalised and modulated into z.
void forward(benchmark::State& state, DType dtype) {
  const std::int64_t rows = 512, width = state.range(0);
  BenchTensor x(dtype, {rows, width}), y(dtype, {rows, width}), z(dtype, {rows, width});
  BenchTensor table(DType::f32, {1, width}), stats(DType::f32, {rows, 2});
  support::measure(state, {&x, &y, &x, &z}, [&](Stream stream) {
    residual_norm(
        {.residual = {.x = x.view(), .y = y.view(), .gate = table.view(), .out = x.view()},
         .norm = {.x = {},
                  .mul = table.view(),
                  .add = table.view(),
                  .one_plus = true,
                  .y = z.view(),
                  .stats = stats.view()}},
        stream);
  });
}

BENCHMARK_CAPTURE(forward, f32, DType::f32)->Name("residual_norm/f32")->Arg(1536)->Arg(5120);
BENCHMARK_CAPTURE(forward, bf16, DType::bf16)->Name("residual_norm/bf16")->Arg(5120);

}  // namespace
}  // namespace ballast::ops::residual_norm_bench
