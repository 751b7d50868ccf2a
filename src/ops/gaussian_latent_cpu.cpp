#include "ops/gaussian_latent.h"
#include "ops/kernels/ordered_sum_simd.h"

namespace ballast::ops::cpu::BALLAST_ISA {
namespace {

namespace v = simd::BALLAST_ISA;

double weight_of(const ConstTensorView& sample_weight, double weight) {
  if (sample_weight.data == nullptr) return weight;
  return weight * static_cast<double>(*reinterpret_cast<const float*>(sample_weight.data));
}

// Means and log-variances of n latent values from the i-th on: they may lie in several rows.
struct Moments {
  const float* data;
  std::int64_t columns;

  std::int64_t mean_at(std::int64_t i) const { return i / columns * 2 * columns + i % columns; }
  void read(std::int64_t i, std::int64_t n, f32v& mean, f32v& variance) const {
    mean = variance = v::splat(0);
    for (std::int64_t k = 0; k < n; ++k) {
      const std::int64_t at = mean_at(i + k);
      mean[k] = data[at];
      variance[k] = data[at + columns];
    }
  }
};

f32v clamped(f32v x) {
  x = x < kMinLogVariance ? v::splat(kMinLogVariance) : x;
  return x > kMaxLogVariance ? v::splat(kMaxLogVariance) : x;
}

Moments moments_of(const ConstTensorView& view, const ConstTensorView& noise) {
  return {reinterpret_cast<const float*>(view.data), noise.shape[1]};
}

}  // namespace

void gaussian_latent(const GaussianLatent& a, ThreadPool& pool) {
  const Moments moments = moments_of(a.moments, a.noise);
  const double weight = weight_of(a.sample_weight, a.weight);
  const auto* noise = reinterpret_cast<const float*>(a.noise.data);
  auto* z = reinterpret_cast<float*>(a.z.data);
  auto* kl = reinterpret_cast<double*>(a.kl.data);
  add_ordered(pool, a.z.shape.elements(), kl, [&](std::int64_t begin, std::int64_t end) {
    return weight * product_sum(begin, end, [&](std::int64_t i, std::int64_t n) {
             f32v m, raw;
             moments.read(i, n, m, raw);
             const f32v lv = clamped(raw);
             write<DType::f32>(z + i, m + v::exp(lv * 0.5f) * read<DType::f32>(noise + i, n), n);
             // Lanes without an element are 0 + 1 - 1 - 0.
             return Factors{m * m + (v::exp(lv) - 1.0f - lv), v::splat(0.5f)};
           });
  });
}

void gaussian_latent_backward(const GaussianLatentBackward& a, ThreadPool& pool) {
  const Moments moments = moments_of(a.moments, a.noise);
  const auto w = static_cast<float>(weight_of(a.sample_weight, a.weight));
  const auto* noise = reinterpret_cast<const float*>(a.noise.data);
  const auto* dz = reinterpret_cast<const float*>(a.dz.data);
  auto* to = reinterpret_cast<float*>(a.dmoments.data);
  each_vector(pool, a.noise.shape.elements(), [=](std::int64_t i, std::int64_t n) {
    f32v m, raw;
    moments.read(i, n, m, raw);
    const f32v lv = clamped(raw), d = read<DType::f32>(dz + i, n);
    const f32v dm = d + m * w;
    f32v dv =
        (d * read<DType::f32>(noise + i, n) * v::exp(lv * 0.5f) + (v::exp(lv) - 1.0f) * w) * 0.5f;
    dv = lv == raw ? dv : v::splat(0);
    for (std::int64_t k = 0; k < n; ++k) {
      const std::int64_t at = moments.mean_at(i + k);
      to[at] = dm[k];
      to[at + moments.columns] = dv[k];
    }
  });
}

}  // namespace ballast::ops::cpu::BALLAST_ISA
