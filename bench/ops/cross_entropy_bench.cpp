#include <cstring>

#include "bench/support/row_bench.h"
#include "ops/cross_entropy.h"

namespace ballast::ops::cross_entropy_bench {
namespace {

using support::BenchTensor;

void in_place(benchmark::State& state, DType dtype) {
  const std::int64_t rows = 256, classes = state.range(0);
  BenchTensor x(dtype, {rows, classes}), weight(DType::f32, {1}), losses(DType::f32, {rows});
  BenchTensor dx(dtype, {rows, classes}), labels(DType::i32, {rows});
  std::memset(labels.view().data, 0, labels.view().bytes());
  support::measure(state, {&x, &dx}, [&](Stream stream) {
    cross_entropy({.x = x.view(),
                   .labels = labels.view(),
                   .weight = weight.view(),
                   .losses = losses.view(),
                   .dx = dx.view()},
                  stream);
  });
}

BENCHMARK_CAPTURE(in_place, f32, DType::f32)->Name("cross_entropy/f32")->Arg(32128);
BENCHMARK_CAPTURE(in_place, bf16, DType::bf16)->Name("cross_entropy/bf16")->Arg(32128);

}  // namespace
}  // namespace ballast::ops::cross_entropy_bench
