#include "bench/support/tensor_memory.h"
#include "ops/adamw_8bit.h"

namespace ballast::ops {
namespace {

using bench::measure_traffic;
using bench::TensorMemory;

void bench_adamw_8bit(benchmark::State& state, DType type, bool kahan) {
  constexpr std::int64_t kCount = 5120 * 256;
  ThreadPool pool(static_cast<int>(state.range(0)));
  TensorMemory p(type, {kCount}), shift(type, {kCount}), g(type, {kCount});
  TensorMemory m(DType::u8, {kCount}), v(DType::u8, {kCount});
  TensorMemory m_absmax(DType::f32, {kCount / kStateBlock});
  TensorMemory v_absmax(DType::f32, {kCount / kStateBlock});
  std::int64_t step = 0;
  const std::size_t traffic =
      2 * (p.bytes() + m.bytes() + v.bytes() + (kahan ? shift.bytes() : 0)) + g.bytes();
  measure_traffic(state, traffic, [&] {
    adamw_8bit({.p = p.view(),
                .m = m.view(),
                .v = v.view(),
                .m_absmax = m_absmax.view(),
                .v_absmax = v_absmax.view(),
                .shift = kahan ? shift.view() : TensorView(),
                .g = g.view(),
                .grad_scale = {},
                .options = {},
                .stabilize = false,
                .step = ++step,
                .learning_rate = 1e-5},
               {.pool = &pool});
  });
  state.SetItemsProcessed(state.iterations() * kCount);
}
BENCHMARK_CAPTURE(bench_adamw_8bit, f32, DType::f32, false)->Arg(1)->Arg(2)->UseRealTime();
BENCHMARK_CAPTURE(bench_adamw_8bit, bf16, DType::bf16, false)->Arg(1)->Arg(2)->UseRealTime();
BENCHMARK_CAPTURE(bench_adamw_8bit, bf16_kahan, DType::bf16, true)->Arg(1)->Arg(2)->UseRealTime();

}  // namespace
}  // namespace ballast::ops
