#include "bench/support/row_bench.h"
#include "ops/space_to_depth.h"

namespace ballast::ops::space_to_depth_bench {
namespace {

void mean(benchmark::State& state) {
  support::BenchTensor wide(DType::f32, {1, 60, 104, 320}), folded(DType::f32, {1, 30, 52, 320});
  support::measure(state, {&wide, &folded}, [&](Stream stream) {
    space_to_depth({.wide = wide.view(), .folded = folded.view(), .block = {.space = 2}}, stream);
  });
}
BENCHMARK(mean)->Name("space_to_depth/f32");

}  // namespace
}  // namespace ballast::ops::space_to_depth_bench
