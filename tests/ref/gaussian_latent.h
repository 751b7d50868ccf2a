#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

namespace ballast::ref {

struct GaussianLatent {
  std::size_t columns = 1;
  double weight = 1;

  std::size_t mean_at(std::size_t i) const { return i / columns * 2 * columns + i % columns; }
};

inline double clamped_log_variance(double v) { return std::clamp(v, -30.0, 20.0); }

inline std::vector<double> gaussian_latent(const GaussianLatent& f,
                                           const std::vector<double>& moments,
                                           const std::vector<double>& noise, double* kl) {
  std::vector<double> z(noise.size());
  for (std::size_t i = 0; i < z.size(); ++i) {
    const double m = moments[f.mean_at(i)];
    const double v = clamped_log_variance(moments[f.mean_at(i) + f.columns]);
    z[i] = m + std::exp(v / 2) * noise[i];
    *kl += f.weight * (m * m + std::exp(v) - 1 - v) / 2;
  }
  return z;
}

inline std::vector<double> gaussian_latent_backward(const GaussianLatent& f,
                                                    const std::vector<double>& moments,
                                                    const std::vector<double>& noise,
                                                    const std::vector<double>& dz) {
  std::vector<double> d(moments.size());
  for (std::size_t i = 0; i < dz.size(); ++i) {
    const std::size_t at = f.mean_at(i);
    const double raw = moments[at + f.columns], v = clamped_log_variance(raw);
    d[at] = dz[i] + f.weight * moments[at];
    if (v != raw) continue;
    d[at + f.columns] = (dz[i] * noise[i] * std::exp(v / 2) + f.weight * (std::exp(v) - 1)) / 2;
  }
  return d;
}

}  // namespace ballast::ref
