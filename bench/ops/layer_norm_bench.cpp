#include "bench/support/row_bench.h"
#include "ops/layer_norm.h"

namespace ballast::ops::layer_norm_bench {
namespace {

using support::BenchTensor;

// The f32 residual stream normalised and modulated into y.
void forward(benchmark::State& state, DType y_dtype) {
  const std::int64_t rows = 512, width = state.range(0);
  BenchTensor x(DType::f32, {rows, width}), y(y_dtype, {rows, width}), mul(DType::f32, {1, width});
  BenchTensor stats(DType::f32, {rows, 2});
  support::measure(state, {&x, &y}, [&](Stream stream) {
    layer_norm({.x = x.view(),
                .mul = mul.view(),
                .add = mul.view(),
                .one_plus = true,
                .y = y.view(),
                .stats = stats.view()},
               stream);
  });
}

void backward(benchmark::State& state, DType dy_dtype, bool frozen) {
  const std::int64_t rows = 512, width = state.range(0);
  BenchTensor x(DType::f32, {rows, width}), dy(dy_dtype, {rows, width}),
      dx(DType::f32, {rows, width});
  BenchTensor mul(DType::f32, {1, width}), dmul(DType::f32, {1, width}),
      dadd(DType::f32, {1, width});
  BenchTensor stats(DType::f32, {rows, 2});
  support::measure(state, {&x, &dy, &dx, &dx}, [&](Stream stream) {
    layer_norm_backward({.x = x.view(),
                         .stats = stats.view(),
                         .mul = mul.view(),
                         .one_plus = true,
                         .dy = dy.view(),
                         .dx = dx.view(),
                         .accumulate = true,
                         .dmul = frozen ? TensorView() : dmul.view(),
                         .dadd = frozen ? TensorView() : dadd.view()},
                        stream);
  });
}

BENCHMARK_CAPTURE(forward, f32, DType::f32)->Name("layer_norm/f32")->Arg(1536)->Arg(5120);
BENCHMARK_CAPTURE(forward, bf16, DType::bf16)->Name("layer_norm/f32-bf16")->Arg(1536)->Arg(5120);
BENCHMARK_CAPTURE(backward, f32, DType::f32, true)->Name("layer_norm_backward/f32")->Arg(5120);
BENCHMARK_CAPTURE(backward, tables, DType::f32, false)
    ->Name("layer_norm_backward/f32+tables")
    ->Arg(5120);

}  // namespace
}  // namespace ballast::ops::layer_norm_bench
