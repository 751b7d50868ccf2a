#include "bench/support/row_bench.h"
#include "ops/relative_bias.h"

namespace ballast::ops::relative_bias_bench {
namespace {

using support::BenchTensor;

void forward(benchmark::State& state) {
  const std::int64_t tokens = state.range(0), heads = 64;
  BenchTensor table(DType::f32, {32, heads}), bias(DType::f32, {heads, 2 * tokens - 1});
  support::measure(state, {&table, &bias}, [&](Stream stream) {
    relative_bias({.table = table.view(),
                   .bias = bias.view(),
                   .buckets = relative_buckets(32, 128, true),
                   .zero = tokens - 1},
                  stream);
  });
}

BENCHMARK(forward)->Name("relative_bias")->Arg(512);

}  // namespace
}  // namespace ballast::ops::relative_bias_bench
