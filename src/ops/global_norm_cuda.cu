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

}  // namespace ballast::ops::cuda
