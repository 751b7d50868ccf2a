#include "bench/support/tensor_memory.h"
#include "ops/collective.h"
#include "plan/runner.h"

namespace ballast::ops {
namespace {

// What came from `columns` ranks is added up: an eighth of a block's LoRA gradients from each.
void bench_tree_sum(benchmark::State& state) {
  constexpr std::int64_t kElements = 240'000;
  const std::int64_t columns = state.range(0);
  ProgramSet set;
  ProgramBuilder pb(set, "sum");
  std::vector<ColumnRange> subtrees;
  std::vector<Buffer> pieces;
  for (std::int64_t c = 0; c < columns; ++c) {
    subtrees.push_back({c, 1});
    pieces.push_back(pb.persistent("piece", {kElements}, DType::f32, Role::gradient));
  }
  tree_sum(pb, {columns, columns}, subtrees, pieces);
  const MemoryPlan plan = plan_memory(set);
  Runner runner(set, plan);
  for (const Buffer b : pieces) std::fill_n(runner.view(b).as<float>(), kElements, 0.0f);
  bench::measure_traffic(state, static_cast<std::size_t>(3 * 4 * kElements * (columns - 1)),
                         [&] { runner.run(0); });
}
BENCHMARK(bench_tree_sum)->Arg(2)->Arg(8)->UseRealTime();

}  // namespace
}  // namespace ballast::ops
