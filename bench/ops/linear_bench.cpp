// Linear products against the machine's roof: the same product as whole-matrix sgemm calls, one per
// thread on its share of the rows (of dw's rows for the weight gradient), measured in turn with it.
// Best of all iterations, because the machine may be shared; on a busy one cpu_share, the same
// ratio in processor time of all threads, still means something (it does not see threads that
// wait).

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <limits>
#include <vector>

#include "core/thread_pool.h"
#include "core/to_size.h"
#include "ops/linear/linear.h"
#include "ops/linear/sgemm.h"

namespace ballast::ops {
namespace {

enum class Product { forward, dx, dw };

struct Case {
  Product product;
  std::int64_t outputs, inputs;
  DType w, x;
  int threads;
};

constexpr std::int64_t kRows = 1024;

// The best of several measurements.
struct Best {
  double wall = std::numeric_limits<double>::max();
  double cpu = std::numeric_limits<double>::max();

  template <class F>
  double measure(F&& f) {
    const auto start = std::chrono::steady_clock::now();
    const std::clock_t cpu_start = std::clock();
    f();
    const double t =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    wall = std::min(wall, t);
    cpu = std::min(cpu, static_cast<double>(std::clock() - cpu_start) / CLOCKS_PER_SEC);
    return t;
  }
};

// Memory of any type, filled with a small number's bit pattern in each (0x3c: 0.01 or 1).
struct Memory {
  std::vector<std::byte> bytes;
  DType dtype;
  Shape shape;

  Memory(DType dtype, const Shape& shape)
      : bytes(to_size(shape.elements()) * size_of(dtype), std::byte{0x3c}),
        dtype(dtype),
        shape(shape) {}
  TensorView view() { return {bytes.data(), dtype, shape}; }
  float* f32() { return reinterpret_cast<float*>(bytes.data()); }
};

void roof(const Case& c, float* x, float* w, float* y, ThreadPool& pool) {
  const std::int64_t k = c.inputs, n = c.outputs;
  const std::int64_t whole = c.product == Product::dw ? n : kRows;
  pool.parallel(c.threads, [&](std::int64_t part, int) {
    const std::int64_t begin = whole * part / c.threads;
    const std::int64_t count = whole * (part + 1) / c.threads - begin;
    switch (c.product) {
      case Product::forward:
        return sgemm({.transpose_b = true,
                      .m = count,
                      .n = n,
                      .k = k,
                      .a = x + begin * k,
                      .lda = k,
                      .b = w,
                      .ldb = k,
                      .c = y + begin * n,
                      .ldc = n});
      case Product::dx:
        return sgemm({.m = count,
                      .n = k,
                      .k = n,
                      .a = y + begin * n,
                      .lda = n,
                      .b = w,
                      .ldb = k,
                      .c = x + begin * k,
                      .ldc = k});
      case Product::dw:
        return sgemm({.transpose_a = true,
                      .m = count,
                      .n = k,
                      .k = kRows,
                      .a = y + begin,
                      .lda = n,
                      .b = x,
                      .ldb = k,
                      .beta = 1,
                      .c = w + begin * k,
                      .ldc = k});
    }
  });
}

void bench_linear(benchmark::State& state, Case c) {
  ThreadPool pool(c.threads);
  warm_up_blas(pool);
  Memory x(c.x, {kRows, c.inputs}), y(c.x, {kRows, c.outputs});
  Memory w(c.w, {c.outputs, c.inputs});
  Memory x32(DType::f32, x.shape), y32(DType::f32, y.shape), w32(DType::f32, w.shape);
  const LinearSize size = {.rows = kRows,
                           .inputs = c.inputs,
                           .outputs = c.outputs,
                           .x = c.x,
                           .y = c.x,
                           .w_in_place = c.w == DType::f32,
                           .threads = c.threads};
  const std::int64_t bytes =
      std::max({linear_workspace(size), linear_dx_workspace(size), linear_dw_workspace(size)});
  Memory scratch(DType::u8, {bytes + 64});
  TensorView workspace = scratch.view();
  workspace.data += (64 - reinterpret_cast<std::uintptr_t>(workspace.data) % 64) % 64;
  workspace.shape[0] = bytes;
  const Stream stream = {.pool = &pool};
  Best ours, whole;
  for (auto _ : state) {
    const double t = ours.measure([&] {
      switch (c.product) {
        case Product::forward:
          return linear({.x = x.view(), .w = w.view(), .y = y.view(), .workspace = workspace},
                        stream);
        case Product::dx:
          return linear_dx({.dy = y.view(), .w = w.view(), .dx = x.view(), .workspace = workspace},
                           stream);
        case Product::dw:
          return linear_dw(
              {.x = x.view(), .dy = y.view(), .dw = w32.view(), .workspace = workspace}, stream);
      }
    });
    whole.measure([&] { roof(c, x32.f32(), w32.f32(), y32.f32(), pool); });
    state.SetIterationTime(t);
    std::fill_n(x32.f32(), x32.shape.elements(), 0.01f);  // the products grow otherwise
    std::fill_n(y32.f32(), y32.shape.elements(), 0.01f);
    std::fill(x.bytes.begin(), x.bytes.end(), std::byte{0x3c});
    std::fill(y.bytes.begin(), y.bytes.end(), std::byte{0x3c});
  }
  const double flops = 2.0 * kRows * static_cast<double>(c.inputs * c.outputs);
  state.counters["GFLOP/s"] = flops / ours.wall * 1e-9;
  state.counters["roof"] = flops / whole.wall * 1e-9;
  state.counters["share"] = whole.wall / ours.wall;
  state.counters["cpu_share"] = whole.cpu / ours.cpu;
}

const char* name_of(Product p) {
  return p == Product::forward ? "linear" : p == Product::dx ? "linear_dx" : "linear_dw";
}

const bool registered = [] {
  const std::pair<std::int64_t, std::int64_t> layers[] = {{1536, 1536}, {8960, 1536}, {1536, 8960}};
  for (const Product product : {Product::forward, Product::dx, Product::dw}) {
    for (const auto& [outputs, inputs] : layers) {
      for (const DType w : {DType::f32, DType::bf16, DType::f8_e4m3}) {
        if (product == Product::dw && w == DType::f8_e4m3) continue;
        for (const int threads : {1, 2}) {
          // The weight gradient has no weights: its second line has bf16 rows.
          const DType x = product == Product::dw ? w : DType::f32;
          const Case c = {product, outputs, inputs, w, x, threads};
          const std::string name = fmt::format("{}/{}x{}/{}/threads:{}", name_of(product), outputs,
                                               inputs, ballast::name_of(w), threads);
          benchmark::RegisterBenchmark(name.c_str(), bench_linear, c)
              ->UseManualTime()
              ->Unit(benchmark::kMillisecond)
              ->Iterations(inputs == outputs ? 8 : 3);
        }
      }
    }
  }
  return true;
}();

}  // namespace
}  // namespace ballast::ops
