#pragma once

#include <benchmark/benchmark.h>

#include <initializer_list>
#include <vector>

#include "core/tensor.h"
#include "core/thread_pool.h"

namespace ballast::support {

// A tensor of ones for benchmarks.
class BenchTensor {
 public:
  BenchTensor(DType dtype, const Shape& shape) : view_(nullptr, dtype, shape) {
    words_.assign(view_.bytes() / 4 + 1, dtype == DType::f32 ? 0x3f800000u : 0x3f803f80u);
    view_.data = reinterpret_cast<std::byte*>(words_.data());
  }
  TensorView view() { return view_; }

 private:
  std::vector<std::uint32_t> words_;
  TensorView view_;
};

// Times run(stream) on one thread (what a core of the machine's own bandwidth it reaches shows best
// there) and counts the tensors that have to move once.
template <class F>
void measure(benchmark::State& state, std::initializer_list<BenchTensor*> moved, F run) {
  ThreadPool pool(1);
  for (auto _ : state) {
    run(Stream{.pool = &pool});
    benchmark::ClobberMemory();
  }
  double bytes = 0;
  for (BenchTensor* t : moved) bytes += static_cast<double>(t->view().bytes());
  state.counters["GB/s"] =
      benchmark::Counter(bytes * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
}

}  // namespace ballast::support
