#include "ops/gaussian_latent_cuda.h"
#include "ops/kernels/elementwise_cuda.cuh"
#include "ops/kernels/ordered_sum_cuda.cuh"

namespace ballast::ops::cuda {
namespace {

// Of ops/gaussian_latent.h, whose header is no C++17.
constexpr float kMin = -30, kMax = 20;

__device__ __forceinline__ float clamped(float v) {
  v = v < kMin ? kMin : v;
  return v > kMax ? kMax : v;
}

__device__ __forceinline__ std::int64_t mean_at(std::int64_t i, std::int64_t columns) {
  return i / columns * 2 * columns + i % columns;
}

__device__ __forceinline__ double weight_of(double weight, const float* sample_weight) {
  return sample_weight == nullptr ? weight : weight * static_cast<double>(*sample_weight);
}

struct LatentData {
  const float *moments, *noise, *sample_weight;
  std::int64_t columns;
  double weight;
  float* z;
};

struct LatentTerm {
  LatentData data;

  struct Item {
    float mean, variance, noise;
  };
  struct Thread {
    LatentData t;
    double weight;

    __device__ Item load(std::int64_t i) const {
      const std::int64_t at = mean_at(i, t.columns);
      return {t.moments[at], t.moments[at + t.columns], t.noise[i]};
    }
    __device__ double add(const Item& x, std::int64_t i, double sum) const {
      const float v = clamped(x.variance);
      t.z[i] = cuda::add(x.mean, mul(expf(mul(v, 0.5f)), x.noise));
      const float distance = cuda::add(mul(x.mean, x.mean), sub(sub(expf(v), 1.0f), v));
      return add_product(distance, 0.5f, sum);
    }
    __device__ double finish(double sum) const { return weight * sum; }
  };
  __device__ Thread begin() const { return {data, weight_of(data.weight, data.sample_weight)}; }
};

struct LatentBackward {
  const float *moments, *noise, *dz, *sample_weight;
  std::int64_t columns;
  double weight;
  float* dmoments;

  template <bool kWhole>
  __device__ void run(std::int64_t i, int count) const {
    const auto w = static_cast<float>(weight_of(weight, sample_weight));
    for (int k = 0; k < count; ++k) {
      const std::int64_t at = mean_at(i + k, columns);
      const float raw = moments[at + columns], v = clamped(raw), d = dz[i + k];
      dmoments[at] = add(d, mul(moments[at], w));
      const float dv =
          mul(add(mul(mul(d, noise[i + k]), expf(mul(v, 0.5f))), mul(sub(expf(v), 1.0f), w)), 0.5f);
      dmoments[at + columns] = v == raw ? dv : 0.0f;
    }
  }
};

}  // namespace

void gaussian_latent(const GaussianLatent& a, void* stream) {
  const LatentTerm term = {{static_cast<const float*>(a.moments.data),
                            static_cast<const float*>(a.noise.data),
                            static_cast<const float*>(a.sample_weight.data), a.noise.shape[1],
                            a.weight, static_cast<float*>(a.z.data)}};
  add_ordered(term, a.noise.elements(), static_cast<double*>(a.kl.data), a.scratch, stream,
              "gaussian_latent");
}

void gaussian_latent_backward(const GaussianLatentBackward& a, void* stream) {
  const LatentBackward op = {static_cast<const float*>(a.moments.data),
                             static_cast<const float*>(a.noise.data),
                             static_cast<const float*>(a.dz.data),
                             static_cast<const float*>(a.sample_weight.data),
                             a.noise.shape[1],
                             a.weight,
                             static_cast<float*>(a.dmoments.data)};
  run_each(op, a.noise.elements(), false, stream, "gaussian_latent_backward");
}

}  // namespace ballast::ops::cuda
