#include "ops/elementwise_cuda.cuh"
#include "ops/global_norm_cuda.h"
#include "ops/ordered_sum_cuda.cuh"

namespace ballast::ops::cuda {
namespace {

__global__ void make_factor(const double* sum, double max_norm, float* factor, float* norm_out) {
  const double norm = sqrt(*sum), ratio = max_norm / (norm + 1e-6);
  *factor = static_cast<float>(max_norm <= 0 || ratio > 1 ? 1 : ratio);  // a NaN ratio stays one
  if (norm_out != nullptr) *norm_out = static_cast<float>(norm);
}

template <class T>
struct Scaling {
  T* x;
  const float* factor;
  template <bool kWhole>
  __device__ void run(std::int64_t i, int count) const {
    const float by = *factor;
    float v[8];
    load_some<kWhole>(x + i, count, v);
#pragma unroll
    for (int k = 0; k < 8; ++k) v[k] *= by;
    store_some<kWhole>(x + i, count, v);
  }
};

struct ProductTerm {
  const float *x, *y;
  struct Item {
    float x, y;
  };
  __device__ ProductTerm begin() const { return *this; }
  __device__ Item load(std::int64_t i) const { return {x[i], y[i]}; }
  __device__ double add(const Item& item, std::int64_t, double sum) const {
    return add_product(item.x, item.y, sum);
  }
  __device__ double finish(double sum) const { return sum; }
};

// One thread: the sum is there.
__global__ void make_limit(const double* sum, double scale, double max_norm, float* factor) {
  const double norm = scale * sqrt(*sum);
  *factor = static_cast<float>(norm > max_norm ? sqrt(max_norm / norm) : 1);
}

}  // namespace

void sum_squares(const SumSquares& a, void* stream) {
  with_activation(a.x.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    add_ordered<Summation::groups>(SquareTerm<T>{static_cast<const T*>(a.x.data)}, a.x.elements(),
                                   static_cast<double*>(a.sum.data), a.scratch, stream,
                                   "sum_squares");
  });
}

void clip_factor(const ClipFactor& a, void* stream) {
  make_factor<<<1, 1, 0, stream_of(stream)>>>(static_cast<const double*>(a.sum.data), a.max_norm,
                                              static_cast<float*>(a.factor.data),
                                              static_cast<float*>(a.norm.data));
  check_launch("clip_factor");
}

void scale_by(const ScaleBy& a, void* stream) {
  with_activation(a.x.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    run_each(Scaling<T>{static_cast<T*>(a.x.data), static_cast<const float*>(a.factor.data)},
             a.x.elements(), sixteen(a.x.data), stream, "scale_by");
  });
}

void limit_factor(const LimitFactor& a, void* stream) {
  double* sum = a.scratch + kSumPartials;
  check_cuda(cudaMemsetAsync(sum, 0, sizeof(double), stream_of(stream)), "limit_factor");
  add_ordered(
      ProductTerm{static_cast<const float*>(a.ga.data), static_cast<const float*>(a.gb.data)},
      a.ga.elements(), sum, a.scratch, stream, "limit_factor");
  make_limit<<<1, 1, 0, stream_of(stream)>>>(sum, a.scale, a.max_norm,
                                             static_cast<float*>(a.factor.data));
  check_launch("limit_factor");
}

}  // namespace ballast::ops::cuda
