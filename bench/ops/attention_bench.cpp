#include <benchmark/benchmark.h>
#include <cblas.h>

#include <chrono>
#include <cmath>
#include <thread>
#include <vector>

#include "core/thread_pool.h"
#include "core/to_size.h"
#include "ops/attention/attention.h"

namespace ballast {
namespace {

double seconds_of(auto&& f) {
  const auto start = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

int threads() { return static_cast<int>(std::max(1u, std::thread::hardware_concurrency())); }

// The roof: every thread multiplies square matrices of its own with the library's sgemm.
class Sgemm {
 public:
  explicit Sgemm(ThreadPool& pool) : pool_(pool) {
    const auto n = to_size(kSize) * kSize;
    for (int i = 0; i < pool.threads(); ++i) {
      a_.emplace_back(n, 0.5f), b_.emplace_back(n, 0.25f), c_.emplace_back(n);
    }
  }
  double flops() const { return 2.0 * kSize * kSize * kSize * pool_.threads(); }
  void run() {
    pool_.parallel(pool_.threads(), [&](std::int64_t i, int) {
      const auto t = to_size(i);
      cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, kSize, kSize, kSize, 1, a_[t].data(),
                  kSize, b_[t].data(), kSize, 0, c_[t].data(), kSize);
    });
  }

 private:
  static constexpr int kSize = 512;
  ThreadPool& pool_;
  std::vector<std::vector<float>> a_, b_, c_;
};

// Arguments: L, H, D, bf16. Each iteration also runs sgemm; the best rates of both are compared, so
// that other work on the machine disturbs the share little.
template <bool kBackward>
void attention(benchmark::State& state) {
  const std::int64_t length = state.range(0), heads = state.range(1), width = state.range(2);
  const DType dtype = state.range(3) ? DType::bf16 : DType::f32;
  const Shape shape = {length, heads, width};
  ThreadPool pool(threads());
  const auto bytes = to_size(shape.elements()) * size_of(dtype);
  std::vector<std::vector<std::byte>> memory(8, std::vector<std::byte>(bytes));
  for (auto& m : memory) {  // exponents around 1, signs and mantissas of a simple sequence
    std::uint32_t x = 12345;
    for (std::size_t i = 0; i < bytes; i += size_of(dtype)) {
      x = x * 1664525u + 1013904223u;
      const std::uint32_t value = (x & 0x807fffffu) | 0x3f000000u;
      std::memcpy(&m[i], reinterpret_cast<const char*>(&value) + 4 - size_of(dtype),
                  size_of(dtype));
    }
  }
  const auto view = [&](std::size_t i) { return TensorView(memory[i].data(), dtype, shape); };
  std::vector<float> lse(to_size(heads * length));
  const TensorView lse_view(reinterpret_cast<std::byte*>(lse.data()), DType::f32, {heads, length});
  const Backend backend = {.threads = pool.threads()};
  const std::int64_t need =
      std::max(ops::attention_workspace(shape, dtype, backend),
               ops::attention_backward_workspace(shape, length, dtype, backend));
  std::vector<std::byte> work(to_size(need));
  const TensorView workspace(work.data(), DType::u8, {need});
  const float scale = 1 / std::sqrt(static_cast<float>(width));
  const auto forward = [&] {
    ops::attention({.q = view(0),
                    .k = view(1),
                    .v = view(2),
                    .o = view(3),
                    .lse = lse_view,
                    .workspace = workspace,
                    .scale = scale,
                    .kv_length = length},
                   {.pool = &pool});
  };
  const auto backward = [&] {
    ops::attention_backward({.q = view(0),
                             .k = view(1),
                             .v = view(2),
                             .o = view(3),
                             .lse = lse_view,
                             .dout = view(4),
                             .dq = view(5),
                             .dk = view(6),
                             .dv = view(7),
                             .workspace = workspace,
                             .scale = scale,
                             .kv_length = length},
                            {.pool = &pool});
  };
  forward();
  Sgemm sgemm(pool);
  sgemm.run();
  double best = 1e9, best_sgemm = 1e9;
  for (auto _ : state) {
    const double s = seconds_of([&] { kBackward ? backward() : forward(); });
    best = std::min(best, s);
    for (int i = 0; i < 3; ++i) best_sgemm = std::min(best_sgemm, seconds_of([&] { sgemm.run(); }));
    state.SetIterationTime(s);
  }
  const double flops = (kBackward ? 10.0 : 4.0) * static_cast<double>(length) *
                       static_cast<double>(length) * static_cast<double>(heads * width);
  state.counters["GFLOP/s"] = flops / best * 1e-9;
  state.counters["sgemm"] = sgemm.flops() / best_sgemm * 1e-9;
  state.counters["share"] = (flops / best) / (sgemm.flops() / best_sgemm);
}

void shapes(benchmark::internal::Benchmark* b) {
  b->ArgNames({"L", "H", "D", "bf16"})->UseManualTime()->Unit(benchmark::kMillisecond);
  b->Args({1024, 12, 128, 0})->Args({1024, 12, 128, 1})->Args({1024, 12, 64, 0});
  b->Args({1024, 12, 40, 0})->Args({1024, 12, 32, 0})->Iterations(5);
}
BENCHMARK(attention<false>)->Name("attention_forward")->Apply(shapes);
BENCHMARK(attention<true>)->Name("attention_backward")->Apply(shapes);

}  // namespace
}  // namespace ballast
