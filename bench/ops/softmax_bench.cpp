#include "bench/support/row_bench.h"
#include "ops/softmax.h"

namespace ballast::ops::softmax_bench {
namespace {

void rows(benchmark::State& state) {
  support::BenchTensor x(DType::f32, {64, 6240}), y(DType::f32, {64, 6240});
  support::measure(state, {&x, &y},
                   [&](Stream stream) { softmax({.x = x.view(), .y = y.view()}, stream); });
}
BENCHMARK(rows)->Name("softmax/f32");

}  // namespace
}  // namespace ballast::ops::softmax_bench
