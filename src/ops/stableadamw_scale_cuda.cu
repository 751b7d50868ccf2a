#include "ops/kernels/ordered_sum_cuda.cuh"
#include "ops/kernels/parameter_cuda.cuh"
#include "ops/stableadamw_scale_cuda.h"

namespace ballast::ops::cuda {
namespace {

// u^2 of an element, u = g / sqrt(max(v, eps^2)).
template <class S, class G>
struct StepTerm {
  const S* v;
  const G* g;
  const void* grad_scale;
  float keep, share, floor;

  struct Item {
    float g, v;
  };
  struct Thread {
    StepTerm t;
    float scale;
    __device__ Item load(std::int64_t i) const { return {to_float(t.g[i]), to_float(t.v[i])}; }
    __device__ double add(const Item& item, std::int64_t, double sum) const {
      const float x = mul(item.g, scale);
      const float now = cuda::add(mul(item.v, t.keep), mul(mul(x, x), t.share));
      // With eps = 0 this would be 0 / 0 where there never was a gradient.
      const float u = x == 0.0f ? 0.0f : __fdiv_rn(x, __fsqrt_rn(now > t.floor ? now : t.floor));
      return add_product(u, u, sum);
    }
    __device__ double finish(double sum) const { return sum; }
  };
  __device__ Thread begin() const { return {*this, scale_of(grad_scale)}; }
};

// One thread: the sum is there.
__global__ void make_stableadamw_scale(const double* sum, double n, double learning_rate,
                                       double weight_decay, float* rates) {
  const double rms = sqrt(*sum / n);
  const double rate = rms > 1 ? learning_rate / rms : learning_rate;
  rates[0] = static_cast<float>(rate);
  rates[1] = static_cast<float>(1 - rate * weight_decay);
}

}  // namespace

void stableadamw_scale(const StableAdamWScale& a, void* stream) {
  const std::int64_t n = a.g.elements();
  const AdamWCoefficients& c = a.coefficients;
  double* sum = a.scratch + kSumPartials;
  check_cuda(cudaMemsetAsync(sum, 0, sizeof(double), stream_of(stream)), "stableadamw_scale");
  with_activation(a.v.dtype, [&](auto s) {
    with_activation(a.g.dtype, [&](auto g) {
      using S = typename decltype(s)::type;
      using G = typename decltype(g)::type;
      add_ordered(StepTerm<S, G>{static_cast<const S*>(a.v.data), static_cast<const G*>(a.g.data),
                                 a.grad_scale.data, c.keep_v, c.add_v, c.eps * c.eps},
                  n, sum, a.scratch, stream, "stableadamw_scale");
    });
  });
  make_stableadamw_scale<<<1, 1, 0, stream_of(stream)>>>(sum, static_cast<double>(n),
                                                         a.learning_rate, a.weight_decay,
                                                         static_cast<float*>(a.rates.data));
  check_launch("stableadamw_scale");
}

}  // namespace ballast::ops::cuda
