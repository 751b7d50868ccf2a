#pragma once

#include <cstdint>
#include <vector>

#include "core/to_size.h"
#include "ops/conv3d/conv3d.h"

namespace ballast::ref {

// All in double, channels last; weights [N, taps, C] without padding.
struct ConvCase {
  std::int64_t frames, height, width, channels;  // of x
  std::int64_t history = 0;                      // frames before it
  std::int64_t out_frames, out_height, out_width, outputs;
  ops::ConvGeometry g;

  std::size_t x_at(std::int64_t t, std::int64_t h, std::int64_t w) const {
    return to_size(((t * height + h) * width + w) * channels);
  }
  std::size_t y_at(std::int64_t t, std::int64_t h, std::int64_t w) const {
    return to_size(((t * out_height + h) * out_width + w) * outputs);
  }
  std::size_t w_at(std::int64_t n, std::int64_t tap) const {
    return to_size((n * g.taps() + tap) * channels);
  }
};

// f(index of the first output channel, tap, index of the first input channel in history + x).
template <class F>
void each_tap(const ConvCase& c, F&& f) {
  const auto source = [](std::int64_t q, int spread, int zoom, std::int64_t size) {
    if (q < 0 || q % spread != 0 || q / spread / zoom >= size) return std::int64_t{-1};
    return q / spread / zoom;
  };
  for (std::int64_t t = 0; t < c.out_frames; ++t) {
    for (std::int64_t h = 0; h < c.out_height; ++h) {
      for (std::int64_t w = 0; w < c.out_width; ++w) {
        std::int64_t tap = 0;
        for (int i = 0; i < c.g.kernel[0]; ++i) {
          for (int j = 0; j < c.g.kernel[1]; ++j) {
            for (int k = 0; k < c.g.kernel[2]; ++k, ++tap) {
              const std::int64_t q = t * c.g.stride[0] + i - c.g.pad[0];
              const std::int64_t frame =
                  q < 0 ? (q + c.history >= 0 ? q + c.history : -1)
                        : (source(q, c.g.spread[0], 1, c.frames) < 0
                               ? -1
                               : source(q, c.g.spread[0], 1, c.frames) + c.history);
              const std::int64_t y =
                  source(h * c.g.stride[1] + j - c.g.pad[1], c.g.spread[1], c.g.zoom, c.height);
              const std::int64_t x =
                  source(w * c.g.stride[2] + k - c.g.pad[2], c.g.spread[2], c.g.zoom, c.width);
              if (frame < 0 || y < 0 || x < 0) continue;
              f(c.y_at(t, h, w), tap, c.x_at(frame, y, x));
            }
          }
        }
      }
    }
  }
}

// x: history frames, then x's.
inline std::vector<double> conv3d(const ConvCase& c, const std::vector<double>& x,
                                  const std::vector<double>& w, const std::vector<double>& bias) {
  std::vector<double> y(to_size(c.out_frames * c.out_height * c.out_width * c.outputs));
  const auto n = to_size(c.outputs);
  for (std::size_t i = 0; i < y.size(); ++i) y[i] = bias[i % n];
  each_tap(c, [&](std::size_t to, std::int64_t tap, std::size_t from) {
    for (std::size_t o = 0; o < n; ++o) {
      for (std::size_t k = 0; k < to_size(c.channels); ++k) {
        y[to + o] += w[c.w_at(static_cast<std::int64_t>(o), tap) + k] * x[from + k];
      }
    }
  });
  return y;
}

struct ConvGradients {
  std::vector<double> dx, dw, dbias;
};
inline ConvGradients conv3d_backward(const ConvCase& c, const std::vector<double>& x,
                                     const std::vector<double>& w, const std::vector<double>& dy) {
  const auto n = to_size(c.outputs);
  ConvGradients g = {std::vector<double>(x.size()), std::vector<double>(w.size()),
                     std::vector<double>(n)};
  for (std::size_t i = 0; i < dy.size(); ++i) g.dbias[i % n] += dy[i];
  each_tap(c, [&](std::size_t to, std::int64_t tap, std::size_t from) {
    for (std::size_t o = 0; o < n; ++o) {
      for (std::size_t k = 0; k < to_size(c.channels); ++k) {
        const std::size_t at = c.w_at(static_cast<std::int64_t>(o), tap) + k;
        g.dx[from + k] += w[at] * dy[to + o];
        g.dw[at] += x[from + k] * dy[to + o];
      }
    }
  });
  return g;
}

}  // namespace ballast::ref
