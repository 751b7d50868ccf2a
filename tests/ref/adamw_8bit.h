#pragma once

// Block-wise 8-bit Adam, element by element: maps built and searched as bitsandbytes' kernels do,
// arithmetic in double.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "core/to_size.h"
#include "tests/ref/update_rounding.h"

namespace ballast::ref {

inline std::vector<float> dynamic_map(bool with_signs) {
  std::vector<float> all = {0.0f, 1.0f};
  for (int i = 0; i < 7; ++i) {
    const int count = (with_signs ? 1 : 2) << i;
    std::vector<float> edges;
    volatile float step = (1.0f - 0.1f) / static_cast<float>(count);  // volatile: nothing is fused
    for (int j = 0; j <= count; ++j) {
      volatile float way = step * static_cast<float>(2 * j < count ? j : count - j);
      edges.push_back(2 * j < count ? 0.1f + way : 1.0f - way);
    }
    for (int j = 0; j < count; ++j) {
      volatile float mean = (edges[to_size(j)] + edges[to_size(j) + 1]) / 2.0f;
      const float value = mean * static_cast<float>(std::pow(10.0, i - 6));
      all.push_back(value);
      if (with_signs) all.push_back(-value);
    }
  }
  std::sort(all.begin(), all.end());
  return all;
}

// Binary search from the middle, then the nearer of the entry found and its neighbour on x's side.
inline int nearest_code(const std::vector<float>& map, float x, bool with_signs) {
  int pivot = 127, upper_pivot = 255, lower_pivot = 0;
  float lower = with_signs ? -1.0f : 0.0f, upper = 1.0f;
  const auto at = [&](int i) { return map[to_size(i)]; };
  for (int i = 64; i > 0; i /= 2) {
    if (x > at(pivot)) {
      lower_pivot = pivot;
      lower = at(pivot);
      pivot += i;
    } else {
      upper_pivot = pivot;
      upper = at(pivot);
      pivot -= i;
    }
  }
  int code = pivot;
  if (x > at(pivot)) {
    if (x > (upper + at(pivot)) * 0.5f) code = upper_pivot;
  } else if (x < (lower + at(pivot)) * 0.5f) {
    code = lower_pivot;
  }
  if (with_signs && std::signbit(at(code)) != std::signbit(x) && x != 0) code += x > 0 ? 1 : -1;
  return code;
}

struct AdamW8bitState {
  std::vector<double> p, shift;
  std::vector<int> m, v;
  std::vector<float> m_absmax, v_absmax;

  AdamW8bitState(std::vector<double> start, std::int64_t block)
      : p(std::move(start)), shift(p.size()), m(p.size()), v(p.size()) {
    const auto blocks = (p.size() + to_size(block) - 1) / to_size(block);
    m_absmax.resize(blocks);
    v_absmax.resize(blocks);
  }
};

struct AdamW8bitSettings {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0.01;
  bool kahan = false;
  DType type = DType::f32;
};

inline void adamw_8bit(AdamW8bitState& s, const std::vector<double>& g, const AdamW8bitSettings& o,
                       int k) {
  static const std::vector<float> m_map = dynamic_map(true), v_map = dynamic_map(false);
  const double k1 = 1 - std::pow(o.beta1, k), k2 = std::sqrt(1 - std::pow(o.beta2, k));
  const std::size_t n = s.p.size();
  for (std::size_t block = 0; block * 256 < n; ++block) {
    const std::size_t begin = block * 256, end = std::min(n, begin + 256);
    std::vector<double> m(256), v(256);
    double m_largest = 0, v_largest = 0;
    for (std::size_t i = begin; i < end; ++i) {
      double& m_new = m[i - begin];
      double& v_new = v[i - begin];
      const bool good = std::isfinite(g[i]);
      if (good) {
        m_new = double{m_map[to_size(s.m[i])]} * s.m_absmax[block];
        v_new = double{v_map[to_size(s.v[i])]} * s.v_absmax[block];
        v_new = o.beta2 * v_new + (1 - o.beta2) * g[i] * g[i];
        m_new = o.beta1 * m_new + (1 - o.beta1) * g[i];
      }
      m_largest = std::max(m_largest, std::abs(m_new));
      v_largest = std::max(v_largest, v_new);
      double& target = o.kahan ? s.shift[i] : s.p[i];
      if (good) {
        const double change = -o.lr * k2 / k1 * m_new / (std::sqrt(v_new) + k2 * o.eps);
        target = nearest(target + change, o.type);
        if (o.weight_decay > 0) target = nearest(target * (1 - o.lr * o.weight_decay), o.type);
      }
      if (o.kahan) {
        const double old = s.p[i];
        s.p[i] = nearest(old + s.shift[i], o.type);
        s.shift[i] = nearest(s.shift[i] + nearest(old - s.p[i], o.type), o.type);
      }
    }
    s.m_absmax[block] = static_cast<float>(m_largest);
    s.v_absmax[block] = static_cast<float>(v_largest);
    for (std::size_t i = begin; i < end; ++i) {
      const auto ratio = [&](double x, double largest) {
        return largest > 0 ? static_cast<float>(x / largest) : 0.0f;
      };
      s.m[i] = nearest_code(m_map, ratio(m[i - begin], m_largest), true);
      s.v[i] = nearest_code(v_map, ratio(v[i - begin], v_largest), false);
    }
  }
}

}  // namespace ballast::ref
