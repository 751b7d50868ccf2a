#pragma once

#include <cmath>
#include <vector>

namespace ballast::ref {

struct RmsNorm {
  std::vector<double> y, r;
};

// y = x r w, r = 1 / sqrt(mean(x^2) + eps); x is [rows, width].
inline RmsNorm rms_norm(const std::vector<double>& x, const std::vector<double>& w, double eps) {
  const std::size_t width = w.size(), rows = x.size() / width;
  RmsNorm out = {std::vector<double>(x.size()), std::vector<double>(rows)};
  for (std::size_t i = 0; i < rows; ++i) {
    double squares = 0;
    for (std::size_t c = 0; c < width; ++c) squares += x[i * width + c] * x[i * width + c];
    out.r[i] = 1 / std::sqrt(squares / static_cast<double>(width) + eps);
    for (std::size_t c = 0; c < width; ++c)
      out.y[i * width + c] = x[i * width + c] * out.r[i] * w[c];
  }
  return out;
}

struct RmsNormGrads {
  std::vector<double> dx, dw;
};

// g = dy w; dx = r (g - x r^2 mean(g x)); dw = sum dy x r.
inline RmsNormGrads rms_norm_backward(const std::vector<double>& x, const std::vector<double>& w,
                                      const std::vector<double>& dy, double eps) {
  const std::size_t width = w.size(), rows = x.size() / width;
  const std::vector<double> r = rms_norm(x, w, eps).r;
  RmsNormGrads out = {std::vector<double>(x.size()), std::vector<double>(width)};
  for (std::size_t i = 0; i < rows; ++i) {
    double gx = 0;
    for (std::size_t c = 0; c < width; ++c) gx += dy[i * width + c] * w[c] * x[i * width + c];
    gx /= static_cast<double>(width);
    for (std::size_t c = 0; c < width; ++c) {
      const std::size_t k = i * width + c;
      out.dx[k] = r[i] * (dy[k] * w[c] - x[k] * r[i] * r[i] * gx);
      out.dw[c] += dy[k] * x[k] * r[i];
    }
  }
  return out;
}

}  // namespace ballast::ref
