#include "bench/support/row_bench.h"
#include "ops/fold_blocks.h"

namespace ballast::ops::fold_blocks_bench {
namespace {

void mean(benchmark::State& state) {
  support::BenchTensor wide(DType::f32, {1, 60, 104, 320}), folded(DType::f32, {1, 30, 52, 320});
  support::measure(state, {&wide, &folded}, [&](Stream stream) {
    fold_blocks({.wide = wide.view(), .folded = folded.view(), .block = {.space = 2}}, stream);
  });
}
BENCHMARK(mean)->Name("fold_blocks/f32");

}  // namespace
}  // namespace ballast::ops::fold_blocks_bench
