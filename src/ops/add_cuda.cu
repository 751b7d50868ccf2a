#include "ops/add_cuda.h"
#include "ops/kernels/cuda_kernel.cuh"

namespace ballast::ops::cuda {
namespace {

constexpr int kThreads = 256;

// A thread moves eight elements at a time where both sides are aligned to them, one elsewhere;
// bound by memory, so any block size that fills the machine does.
template <class X, class Y, bool kEights>
__global__ void add(const X* x, std::int64_t x_step, Y* y, std::int64_t y_step, std::int64_t rows,
                    std::int64_t columns, float alpha) {
  constexpr int kStep = kEights ? 8 : 1;
  const std::int64_t per_row = columns / kStep, all = rows * per_row;
  for (std::int64_t i = blockIdx.x * std::int64_t{kThreads} + threadIdx.x; i < all;
       i += std::int64_t{gridDim.x} * kThreads) {
    const std::int64_t row = i / per_row, at = i % per_row * kStep;
    const X* from = x + row * x_step + at;
    Y* to = y + row * y_step + at;
    if constexpr (kEights) {
      float a[8], b[8];
      load8(from, a);
      load8(to, b);
#pragma unroll
      for (int k = 0; k < 8; ++k) b[k] += a[k] * alpha;
      store8(to, b);
    } else {
      *to = from_float<Y>(to_float(*to) + to_float(*from) * alpha);
    }
  }
}

}  // namespace

void add_into(const AddInto& a, void* stream) {
  const std::int64_t rows = a.y.shape[0], columns = a.y.shape[1];
  if (rows * columns == 0) return;
  with_activation(a.x.dtype, [&](auto x) {
    with_activation(a.y.dtype, [&](auto y) {
      using X = typename decltype(x)::type;
      using Y = typename decltype(y)::type;
      const auto launch = [&](auto* kernel, std::int64_t step) {
        kernel<<<some_blocks(rows * columns / step, kThreads), kThreads, 0, stream_of(stream)>>>(
            static_cast<const X*>(a.x.data), a.x.strides[0], static_cast<Y*>(a.y.data),
            a.y.strides[0], rows, columns, a.alpha);
      };
      if (in_eights(a.x) && in_eights(a.y)) {
        launch(add<X, Y, true>, 8);
      } else {
        launch(add<X, Y, false>, 1);
      }
    });
  });
  check_launch("add");
}

}  // namespace ballast::ops::cuda
