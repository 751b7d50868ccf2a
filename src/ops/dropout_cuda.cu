#include "ops/dropout_cuda.h"
#include "ops/kernels/elementwise_cuda.cuh"
#include "ops/kernels/random_cuda.cuh"

namespace ballast::ops::cuda {
namespace {

constexpr int kThreads = 256;

struct Rule {
  RandomKey source;
  std::uint64_t first;  // element of the whole tensor that is the first here
  std::uint32_t threshold;
  float scale;
  bool accumulate;
  DropUnit unit;
};

// A thread takes eight neighbours of a row, whose words are two blocks of Philox where rows are
// whole eights, or fewer at the end of a row; enough work per byte that any block size does.
template <class X, class Y>
__global__ void drop(const X* x, std::int64_t x_step, Y* y, std::int64_t y_step, std::int64_t rows,
                     std::int64_t columns, bool aligned, Rule rule) {
  const std::int64_t per_row = (columns + 7) / 8, all = rows * per_row;
  for (std::int64_t i = blockIdx.x * std::int64_t{kThreads} + threadIdx.x; i < all;
       i += std::int64_t{gridDim.x} * kThreads) {
    const std::int64_t row = i / per_row, at = i % per_row * 8, left = columns - at;
    const int count = left < 8 ? static_cast<int>(left) : 8;
    const X* from = x + row * x_step + at;
    Y* to = y + row * y_step + at;
    std::uint32_t words[8];
    const std::uint64_t element = rule.first + static_cast<std::uint64_t>(row * columns + at);
    random_words(rule.source,
                 rule.unit == DropUnit::element  ? element
                 : rule.unit == DropUnit::column ? static_cast<std::uint64_t>(at)
                                                 : 0,
                 words);
    float v[8], before[8] = {};
    if (aligned) {
      load_some<true>(from, 8, v);
      if (rule.accumulate) load_some<true>(to, 8, before);
    } else {
      load_some<false>(from, count, v);
      if (rule.accumulate) load_some<false>(to, count, before);
    }
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const std::uint32_t word = rule.unit == DropUnit::matrix ? words[0] : words[k];
      v[k] = word < rule.threshold ? 0.0f : mul(v[k], rule.scale);
      if (rule.accumulate) v[k] = add(v[k], before[k]);
    }
    if (aligned) {
      store_some<true>(to, 8, v);
    } else {
      store_some<false>(to, count, v);
    }
  }
}

}  // namespace

void dropout(const Dropout& a, void* stream) {
  const std::int64_t rows = a.x.shape[0], columns = a.x.shape[1];
  if (rows * columns == 0) return;
  const Rule rule = {
      a.source,
      static_cast<std::uint64_t>(a.first_row) * static_cast<std::uint64_t>(columns),
      static_cast<std::uint32_t>(a.probability * 0x1p32),
      a.unit == DropUnit::matrix ? 1.0f : static_cast<float>(1 / (1 - a.probability)),
      a.accumulate,
      a.unit};
  with_activation(a.x.dtype, [&](auto x) {
    with_activation(a.y.dtype, [&](auto y) {
      using X = typename decltype(x)::type;
      using Y = typename decltype(y)::type;
      drop<<<some_blocks(rows * ((columns + 7) / 8), kThreads), kThreads, 0, stream_of(stream)>>>(
          static_cast<const X*>(a.x.data), a.x.strides[0], static_cast<Y*>(a.y.data),
          a.y.strides[0], rows, columns, in_eights(a.x) && in_eights(a.y), rule);
    });
  });
  check_launch("dropout");
}

}  // namespace ballast::ops::cuda
