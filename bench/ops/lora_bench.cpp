// An adapter of rank 16 beside a 1536 x 1536 layer, forward and backward.

#include <benchmark/benchmark.h>

#include "ops/linear/lora.h"
#include "tests/support/recorded_program.h"

namespace ballast::ops {
namespace {

using support::SampleTensor;

void bench_lora(benchmark::State& state) {
  const std::int64_t rows = 1024, width = 1536, rank = 16;
  support::RecordedProgram p(static_cast<int>(state.range(0)));
  const SampleTensor factor_a(DType::f32, {rank, width}), factor_b(DType::f32, {width, rank});
  const SampleTensor activation(DType::f32, {rows, width});
  const LoraWeight w = {.a = p.input("a", factor_a), .b = p.input("b", factor_b)};
  const LoraGrads grads = {.da = p.input("da", factor_a), .db = p.input("db", factor_b)};
  const Buffer x = p.input("x", activation), y = p.input("y", activation);
  const LoraOut kept = lora_down(p.pb, x, w);
  lora_up(p.pb, kept.u, w, y);
  const Buffer dy = p.input("dy", activation), dx = p.input("dx", activation);
  const Buffer du = p.pb.temp("du", {rows, rank}, DType::f32);
  lora_du(p.pb, dy, w, du);
  lora_dw(p.pb, kept, dy, du, w, grads);
  lora_dx(p.pb, du, w, dx, false);
  for (auto _ : state) p.run();
  double flops = 0;
  for (std::size_t i = 0; i < p.instructions(); ++i) flops += p.instruction(i).cost.flops;
  state.counters["GFLOP/s"] = benchmark::Counter(
      flops * 1e-9 * static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
}
BENCHMARK(bench_lora)->Name("lora")->ArgName("threads")->Arg(1)->Arg(2)->UseRealTime();

}  // namespace
}  // namespace ballast::ops
