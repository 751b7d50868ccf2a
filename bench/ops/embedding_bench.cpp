#include <cstring>
#include <vector>

#include "bench/support/row_bench.h"
#include "ops/embedding.h"

namespace ballast::ops::embedding_bench {
namespace {

using support::BenchTensor;

void forward(benchmark::State& state) {
  const std::int64_t rows = 2048, width = state.range(0);
  BenchTensor table(DType::f32, {32128, width}), y(DType::f32, {rows, width});
  BenchTensor ids(DType::i32, {rows});  // all of them 0: a bench tensor's bytes
  std::memset(ids.view().data, 0, ids.view().bytes());
  support::measure(state, {&y, &y}, [&](Stream stream) {
    embedding({.table = table.view(), .ids = ids.view(), .y = y.view()}, stream);
  });
}

BENCHMARK(forward)->Name("embedding/f32")->Arg(2048);

}  // namespace
}  // namespace ballast::ops::embedding_bench
