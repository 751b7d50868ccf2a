#pragma once

// y = f(x) and z = f(x, y), element by element, for .cu files. f is a type with a static
// __device__ float of(float) or of(float, float).

#include "ops/kernels/row_kernel.cuh"

namespace ballast::ops::cuda {

// x and y of z = f(x, y); a map of one operand has y = x and does not read it again.
template <class F, class E, bool kTwo>
__global__ void __launch_bounds__(kColumnThreads)
    map_eights(const E* x, std::int64_t x_step, const E* y, std::int64_t y_step, E* z,
               std::int64_t z_step, std::int64_t rows, std::int64_t columns) {
  const std::int64_t c = (std::int64_t{blockIdx.x} * kColumnThreads + threadIdx.x) * 8;
  if (c >= columns) return;
  const auto apply = [&](const Eight<E>& a, const Eight<E>& b, std::int64_t row) {
    float p[8], q[8];
    a.unpack(p);
    if constexpr (kTwo) b.unpack(q);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if constexpr (kTwo) {
        p[i] = F::of(p[i], q[i]);
      } else {
        p[i] = F::of(p[i]);
      }
    }
    Eight<E> out;
    pack_eight(out, p);
    out.store(z + row * z_step + c);
  };
  const std::int64_t next = gridDim.y;
  for (std::int64_t r = blockIdx.y; r < rows; r += 2 * next) {
    const bool second = r + next < rows;
    Eight<E> a[2], b[2];
    a[0].load_once(x + r * x_step + c);
    if constexpr (kTwo) b[0].load(y + r * y_step + c);
    if (second) {
      a[1].load_once(x + (r + next) * x_step + c);
      if constexpr (kTwo) b[1].load(y + (r + next) * y_step + c);
    }
    apply(a[0], b[0], r);
    if (second) apply(a[1], b[1], r + next);
  }
}

template <class F, bool kTwo>
__global__ void map_any(Matrix x, Matrix y, Matrix z, std::int64_t rows, std::int64_t columns) {
  const std::int64_t all = rows * columns, step = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < all; i += step) {
    const std::int64_t r = i / columns, c = i % columns;
    if constexpr (kTwo) {
      write(z, r, c, F::of(read(x, r, c), read(y, r, c)));
    } else {
      write(z, r, c, F::of(read(x, r, c)));
    }
  }
}

template <class F, bool kTwo>
void map(const View& x, const View& y, const View& z, cudaStream_t stream) {
  const std::int64_t rows = x.shape[0], columns = x.shape[1];
  if (rows * columns == 0) return;
  if (x.dtype != z.dtype || y.dtype != z.dtype || !in_eights(x) || !in_eights(y) || !in_eights(z)) {
    map_any<F, kTwo><<<some_blocks(rows * columns, 256), 256, 0, stream>>>(
        matrix(x), matrix(y), matrix(z), rows, columns);
    return;
  }
  with_activation(x.dtype, [&](auto tag) {
    using E = typename decltype(tag)::type;
    map_eights<F, E, kTwo><<<column_grid(rows, columns), kColumnThreads, 0, stream>>>(
        static_cast<const E*>(x.data), x.strides[0], static_cast<const E*>(y.data), y.strides[0],
        static_cast<E*>(z.data), z.strides[0], rows, columns);
  });
}

template <class F>
void map_rows(const View& x, const View& y, cudaStream_t stream) {
  map<F, false>(x, x, y, stream);
}
template <class F>
void map_rows(const View& x, const View& y, const View& z, cudaStream_t stream) {
  map<F, true>(x, y, z, stream);
}

}  // namespace ballast::ops::cuda
