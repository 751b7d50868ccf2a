#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

namespace ballast::ref {

struct AdafactorSettings {
  double eps_rows = 1e-30, eps_scale = 1e-3, clip_threshold = 1, decay_rate = -0.8;
  double weight_decay = 0, lr = 0;
  bool scale_parameter = true, relative_step = true, warmup_init = false;
};

// `stack` matrices of rows x columns; a vector has rows == 0 and its second moments in `v`.
struct AdafactorState {
  std::size_t stack = 1, rows = 0, columns = 0;
  std::vector<double> p, row, column, v;
};

inline double rms(const std::vector<double>& x) {
  double sum = 0;
  for (const double e : x) sum += e * e;
  return std::sqrt(sum / static_cast<double>(x.size()));
}

inline void adafactor(AdafactorState& s, const std::vector<double>& g, const AdafactorSettings& o,
                      int k) {
  const double b = 1 - std::pow(k, o.decay_rate);
  std::vector<double> u(g.size());
  if (s.rows == 0) {
    for (std::size_t i = 0; i < g.size(); ++i) {
      s.v[i] = b * s.v[i] + (1 - b) * (g[i] * g[i] + o.eps_rows);
      u[i] = g[i] / std::sqrt(s.v[i]);
    }
  }
  for (std::size_t z = 0; s.rows > 0 && z < s.stack; ++z) {
    const auto square = [&](std::size_t r, std::size_t c) {
      const double x = g[(z * s.rows + r) * s.columns + c];
      return x * x + o.eps_rows;
    };
    double mean = 0;
    for (std::size_t r = 0; r < s.rows; ++r) {
      double sum = 0;
      for (std::size_t c = 0; c < s.columns; ++c) sum += square(r, c);
      double& row = s.row[z * s.rows + r];
      row = b * row + (1 - b) * sum / static_cast<double>(s.columns);
      mean += row / static_cast<double>(s.rows);
    }
    for (std::size_t c = 0; c < s.columns; ++c) {
      double sum = 0;
      for (std::size_t r = 0; r < s.rows; ++r) sum += square(r, c);
      double& column = s.column[z * s.columns + c];
      column = b * column + (1 - b) * sum / static_cast<double>(s.rows);
    }
    for (std::size_t r = 0; r < s.rows; ++r) {
      for (std::size_t c = 0; c < s.columns; ++c) {
        const std::size_t i = (z * s.rows + r) * s.columns + c;
        u[i] = g[i] / std::sqrt(s.row[z * s.rows + r] / mean * s.column[z * s.columns + c]);
      }
    }
  }
  double rate = o.lr;
  if (o.relative_step) rate = std::min(o.warmup_init ? 1e-6 * k : 1e-2, 1 / std::sqrt(k));
  if (o.scale_parameter) rate *= std::max(o.eps_scale, rms(s.p));
  const double clip = std::max(1.0, rms(u) / o.clip_threshold);
  for (std::size_t i = 0; i < g.size(); ++i) {
    s.p[i] = s.p[i] - rate * o.weight_decay * s.p[i] - rate * u[i] / clip;
  }
}

}  // namespace ballast::ref
