#include "bench/support/row_bench.h"
#include "ops/rope_3d.h"

namespace ballast::ops {
namespace {

using support::BenchTensor;

// 14B: 40 heads of 128.
void rotate(benchmark::State& state, DType dtype) {
  const std::int64_t tokens = 512, heads = 40, width = 128;
  BenchTensor x(dtype, {tokens, heads, width}), table(DType::f32, {tokens, width / 2, 2});
  support::measure(state, {&x, &x}, [&](Stream stream) {
    rope_3d({.x = x.view(), .table = table.view(), .y = x.view()}, stream);
  });
}

// 832 x 480, 81 frames.
void fill_table(benchmark::State& state) {
  BenchTensor table(DType::f32, {21 * 30 * 52, 64, 2});
  support::measure(state, {&table}, [&](Stream stream) {
    rope_3d_table({.grid = {21, 30, 52}, .table = table.view()}, stream);
  });
}

BENCHMARK_CAPTURE(rotate, f32, DType::f32)->Name("rope_3d/f32");
BENCHMARK_CAPTURE(rotate, bf16, DType::bf16)->Name("rope_3d/bf16");
BENCHMARK(fill_table)->Name("rope_3d_table");

}  // namespace
}  // namespace ballast::ops
