#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "core/to_size.h"

namespace ballast::ref {

// Tables are [T, width]; an empty one is absent, an empty index means row 0.
struct NormTables {
  std::vector<double> mul, add;
  std::vector<std::int32_t> index;
  bool one_plus = false;

  std::size_t row(std::size_t i) const { return index.empty() ? 0 : to_size(index[i]); }
  double factor(std::size_t i, std::size_t c, std::size_t width) const {
    return mul.empty() ? 1 : (one_plus ? 1 : 0) + mul[row(i) * width + c];
  }
};

struct LayerNorm {
  std::vector<double> y, stats;  // stats: mean, rstd of each row
};

// y = (x - mean) rstd f + add, biased variance.
inline LayerNorm layer_norm(const std::vector<double>& x, std::size_t width, const NormTables& t,
                            double eps) {
  const std::size_t rows = x.size() / width;
  LayerNorm out = {std::vector<double>(x.size()), std::vector<double>(2 * rows)};
  for (std::size_t i = 0; i < rows; ++i) {
    double mean = 0, variance = 0;
    for (std::size_t c = 0; c < width; ++c) mean += x[i * width + c];
    mean /= static_cast<double>(width);
    for (std::size_t c = 0; c < width; ++c) {
      variance += (x[i * width + c] - mean) * (x[i * width + c] - mean);
    }
    variance /= static_cast<double>(width);
    const double rstd = 1 / std::sqrt(variance + eps);
    out.stats[2 * i] = mean;
    out.stats[2 * i + 1] = rstd;
    for (std::size_t c = 0; c < width; ++c) {
      out.y[i * width + c] = (x[i * width + c] - mean) * rstd * t.factor(i, c, width) +
                             (t.add.empty() ? 0 : t.add[t.row(i) * width + c]);
    }
  }
  return out;
}

struct LayerNormGrads {
  std::vector<double> dx, dmul, dadd;
};

// g = dy f; dx = rstd (g - mean(g) - xhat mean(g xhat)); dmul[t] = sum dy xhat, dadd[t] = sum dy.
inline LayerNormGrads layer_norm_backward(const std::vector<double>& x, std::size_t width,
                                          const NormTables& t, const std::vector<double>& dy,
                                          double eps, std::size_t tables) {
  const std::size_t rows = x.size() / width;
  const std::vector<double> stats = layer_norm(x, width, t, eps).stats;
  LayerNormGrads out = {std::vector<double>(x.size()), std::vector<double>(tables * width),
                        std::vector<double>(tables * width)};
  for (std::size_t i = 0; i < rows; ++i) {
    const double mean = stats[2 * i], rstd = stats[2 * i + 1];
    double g_mean = 0, gx_mean = 0;
    for (std::size_t c = 0; c < width; ++c) {
      const double g = dy[i * width + c] * t.factor(i, c, width);
      g_mean += g / static_cast<double>(width);
      gx_mean += g * (x[i * width + c] - mean) * rstd / static_cast<double>(width);
    }
    for (std::size_t c = 0; c < width; ++c) {
      const std::size_t k = i * width + c;
      const double xhat = (x[k] - mean) * rstd;
      out.dx[k] = rstd * (dy[k] * t.factor(i, c, width) - g_mean - xhat * gx_mean);
      out.dmul[t.row(i) * width + c] += dy[k] * xhat;
      out.dadd[t.row(i) * width + c] += dy[k];
    }
  }
  return out;
}

}  // namespace ballast::ref
