#include "ops/kernels/cuda_kernel.cuh"
#include "ops/softmax_cuda.h"

namespace ballast::ops::cuda {
namespace {

constexpr int kThreads = 256;

__device__ __forceinline__ float block_max(float x, float* scratch) {
#pragma unroll
  for (int o = 16; o > 0; o >>= 1) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, o));
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  if (lane == 0) scratch[warp] = x;
  __syncthreads();
  float most = scratch[0];
  for (int w = 1; w < kThreads / 32; ++w) most = fmaxf(most, scratch[w]);
  return most;
}

// A block takes a row; rows have thousands of keys. The row is looked at three times and comes from
// the cache the second and third time.
template <class X, class Y>
__global__ void softmax_rows(const X* x, std::int64_t x_step, Y* y, std::int64_t y_step,
                             std::int64_t width, float scale) {
  __shared__ float scratch[64];
  const X* from = x + blockIdx.x * x_step;
  Y* to = y + blockIdx.x * y_step;
  float most = -INFINITY;
  for (std::int64_t i = threadIdx.x; i < width; i += kThreads) {
    most = fmaxf(most, to_float(from[i]) * scale);
  }
  most = block_max(most, scratch);
  float sum = 0;
  for (std::int64_t i = threadIdx.x; i < width; i += kThreads) {
    sum += expf(to_float(from[i]) * scale - most);
  }
  const float factor = 1.0f / block_sum(sum, scratch + 32);
  for (std::int64_t i = threadIdx.x; i < width; i += kThreads) {
    to[i] = from_float<Y>(expf(to_float(from[i]) * scale - most) * factor);
  }
}

template <class Y, class D, class X>
__global__ void softmax_backward_rows(const Y* y, std::int64_t y_step, const D* dy,
                                      std::int64_t dy_step, X* dx, std::int64_t dx_step,
                                      std::int64_t width, float scale) {
  __shared__ float scratch[32];
  const Y* p = y + blockIdx.x * y_step;
  const D* d = dy + blockIdx.x * dy_step;
  X* to = dx + blockIdx.x * dx_step;
  float sum = 0;
  for (std::int64_t i = threadIdx.x; i < width; i += kThreads)
    sum += to_float(p[i]) * to_float(d[i]);
  const float along = block_sum(sum, scratch);
  for (std::int64_t i = threadIdx.x; i < width; i += kThreads) {
    to[i] = from_float<X>(to_float(p[i]) * (to_float(d[i]) - along) * scale);
  }
}

}  // namespace

void softmax(const Softmax& a, void* stream) {
  const std::int64_t rows = a.x.shape[0], width = a.x.shape[1];
  if (rows * width == 0) return;
  with_activation(a.x.dtype, [&](auto x) {
    with_activation(a.y.dtype, [&](auto y) {
      using X = typename decltype(x)::type;
      using Y = typename decltype(y)::type;
      softmax_rows<X, Y><<<blocks_for(rows, 1), kThreads, 0, stream_of(stream)>>>(
          static_cast<const X*>(a.x.data), a.x.strides[0], static_cast<Y*>(a.y.data),
          a.y.strides[0], width, a.scale);
    });
  });
  check_launch("softmax");
}

void softmax_backward(const SoftmaxBackward& a, void* stream) {
  const std::int64_t rows = a.y.shape[0], width = a.y.shape[1];
  if (rows * width == 0) return;
  with_activation(a.y.dtype, [&](auto y) {
    with_activation(a.dy.dtype, [&](auto dy) {
      with_activation(a.dx.dtype, [&](auto dx) {
        using Y = typename decltype(y)::type;
        using D = typename decltype(dy)::type;
        using X = typename decltype(dx)::type;
        softmax_backward_rows<Y, D, X><<<blocks_for(rows, 1), kThreads, 0, stream_of(stream)>>>(
            static_cast<const Y*>(a.y.data), a.y.strides[0], static_cast<const D*>(a.dy.data),
            a.dy.strides[0], static_cast<X*>(a.dx.data), a.dx.strides[0], width, a.scale);
      });
    });
  });
  check_launch("softmax_backward");
}

}  // namespace ballast::ops::cuda
