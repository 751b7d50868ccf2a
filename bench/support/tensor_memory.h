#pragma once

#include <benchmark/benchmark.h>

#include <cstddef>
#include <vector>

#include "core/tensor.h"
#include "core/thread_pool.h"
#include "core/to_size.h"

namespace ballast::bench {

// A contiguous tensor that owns its memory. Every byte is 0x3c: all elements are the same small
// normal number in any float format, so no subnormal slows a kernel down.
class TensorMemory {
 public:
  TensorMemory(DType dtype, const Shape& shape)
      : dtype_(dtype),
        shape_(shape),
        bytes_(to_size(shape.elements()) * size_of(dtype), std::byte{0x3c}) {}

  TensorView view() { return {bytes_.data(), dtype_, shape_}; }
  std::size_t bytes() const { return bytes_.size(); }

 private:
  DType dtype_;
  Shape shape_;
  std::vector<std::byte> bytes_;
};

// Calls f over and over and counts the bytes it must move at least.
template <class F>
void measure_traffic(benchmark::State& state, std::size_t bytes_per_call, F&& f) {
  for (auto _ : state) f();
  state.counters["GB/s"] = benchmark::Counter(
      1e-9 * static_cast<double>(bytes_per_call) * static_cast<double>(state.iterations()),
      benchmark::Counter::kIsRate);
}

}  // namespace ballast::bench
