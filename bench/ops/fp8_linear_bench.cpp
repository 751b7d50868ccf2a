// The product of 8-bit matrices, with the rounding of its rows, beside ops/linear/linear.h on the
// same sizes: on the CPU it is what tests and references cost.

#include <benchmark/benchmark.h>

#include <vector>

#include "core/thread_pool.h"
#include "core/to_size.h"
#include "ops/linear/fp8_linear.h"

namespace ballast::ops {
namespace {

void fp8_linear_bench(benchmark::State& state) {
  const std::int64_t rows = 512, inputs = 1024, outputs = 1024;
  ThreadPool pool(static_cast<int>(state.range(0)));
  // 0x3c: 1.5 in f8_e4m3, 0.01 in f32.
  std::vector<std::byte> x(to_size(rows * inputs * 4), std::byte{0x3c});
  std::vector<std::byte> w(to_size(outputs * inputs), std::byte{0x3c});
  std::vector<std::byte> codes(to_size(rows * inputs));
  std::vector<float> scale(to_size(rows));
  std::vector<float> y(to_size(rows * outputs));
  const TensorView scales(reinterpret_cast<std::byte*>(scale.data()), DType::f32, {rows});
  const TensorView q(codes.data(), DType::f8_e4m3, {rows, inputs});
  Fp8Linear call = {.x = q,
                    .x_scale = scales,
                    .w = {w.data(), DType::f8_e4m3, {outputs, inputs}},
                    .y = {reinterpret_cast<std::byte*>(y.data()), DType::f32, {rows, outputs}}};
  const std::int64_t bytes = fp8_linear_workspace(fp8_linear_size(call, pool.threads()));
  std::vector<std::byte> workspace(to_size(bytes) + 64);
  const auto misfit = reinterpret_cast<std::uintptr_t>(workspace.data()) % 64;
  call.workspace = {workspace.data() + (64 - misfit) % 64, DType::u8, {bytes}};
  for (auto _ : state) {
    quantize_rows(
        {.w = ConstTensorView(x.data(), DType::f32, {rows, inputs}), .q = q, .scale = scales},
        {.pool = &pool});
    fp8_linear(call, {.pool = &pool});
    benchmark::ClobberMemory();
  }
  state.counters["GFLOP/s"] =
      benchmark::Counter(2e-9 * static_cast<double>(rows * inputs * outputs),
                         benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(fp8_linear_bench)->Arg(1)->Arg(2)->UseRealTime();

}  // namespace
}  // namespace ballast::ops
