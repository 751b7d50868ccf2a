#pragma once

// The image student in double, one sample at a time, in the order of the formulas.

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "core/to_size.h"
#include "models/student/config.h"
#include "tests/ref/attention.h"
#include "tests/ref/layer_norm.h"
#include "tests/ref/linear.h"
#include "tests/ref/silu.h"

namespace ballast::ref {

struct StudentSample {
  std::vector<double> latent;  // [L, N]
  std::vector<double> text;    // [X]
  std::vector<double> target;  // [L, T]
  double t = 0;
};

class Student {
 public:
  using Values = std::vector<double>;

  Student(const student::Config& config, std::map<std::string, Values> weights)
      : c_(config), weights_(std::move(weights)) {}

  std::map<std::string, Values>& weights() { return weights_; }

  Values forward(const StudentSample& s) const {
    const std::size_t width = u(c_.hidden_size), half = width / 2;
    Values time(width);
    for (std::size_t j = 0; j < half; ++j) {
      const double f =
          std::exp(-static_cast<double>(j) * std::log(1e4) / static_cast<double>(half - 1));
      time[j] = std::sin(s.t * f);
      time[half + j] = std::cos(s.t * f);
    }
    const Values e = linear("time_embed.2", map(linear("time_embed.0", time), silu));
    const Values text = linear("text_proj", s.text);
    Values x = convolve("conv_in", s.latent, u(c_.num_channels));
    for (std::int64_t b = 0; b < c_.depth; ++b) {
      x = block("blocks." + std::to_string(b) + ".", std::move(x), text, e);
    }
    const Values y = convolve("conv_out", x, width);
    return c_.projects() ? linear("output_proj", y) : y;
  }

  double loss(const std::vector<StudentSample>& samples) const {
    double sum = 0, count = 0;
    for (const StudentSample& s : samples) {
      const Values y = forward(s);
      for (std::size_t i = 0; i < y.size(); ++i) {
        sum += (y[i] - s.target[i]) * (y[i] - s.target[i]);
      }
      count += static_cast<double>(y.size());
    }
    return sum / count;
  }

 private:
  static std::size_t u(std::int64_t n) { return to_size(n); }
  template <class F>
  static Values map(Values x, F f) {
    for (double& v : x) v = f(v);
    return x;
  }
  const Values& weight(const std::string& name) const { return weights_.at(name); }

  Values product(const Values& x, const Values& w, const Values& b) const {
    const std::size_t inputs = w.size() / b.size();
    return ref::linear({x.size() / inputs, inputs, b.size()}, x, w, b);
  }
  Values linear(const std::string& module, const Values& x) const {
    return product(x, weight(module + ".weight"), weight(module + ".bias"));
  }

  // 3 x 3, zeros around; x [L, in] -> [L, out], weights [out, in, 3, 3].
  Values convolve(const std::string& module, const Values& x, std::size_t in) const {
    const Values &w = weight(module + ".weight"), &b = weight(module + ".bias");
    const std::int64_t g = c_.grid();
    Values y;
    for (std::int64_t h = 0; h < g; ++h) {
      for (std::int64_t v = 0; v < g; ++v) {
        for (std::size_t o = 0; o < b.size(); ++o) {
          double sum = b[o];
          for (std::int64_t i = 0; i < 3; ++i) {
            for (std::int64_t j = 0; j < 3; ++j) {
              const std::int64_t row = h + i - 1, column = v + j - 1;
              if (row < 0 || column < 0 || row >= g || column >= g) continue;
              for (std::size_t c = 0; c < in; ++c) {
                sum += w[((o * in + c) * 3 + u(i)) * 3 + u(j)] * x[u(row * g + column) * in + c];
              }
            }
          }
          y.push_back(sum);
        }
      }
    }
    return y;
  }

  Values block(const std::string& p, Values x, const Values& text, const Values& time) const {
    const std::size_t width = u(c_.hidden_size), rows = x.size() / width;
    const auto norm = [&](const char* name) {
      return layer_norm(x, width,
                        {.mul = weight(p + name + ".weight"),
                         .add = weight(p + name + ".bias"),
                         .index = {}},
                        1e-5)
          .y;
    };
    const auto add = [&](const Values& y) {
      for (std::size_t i = 0; i < x.size(); ++i) x[i] += y[i];
    };
    for (std::size_t i = 0; i < x.size(); ++i) x[i] += text[i % width] + time[i % width];
    const Values qkv =
        product(norm("norm1"), weight(p + "attn.in_proj_weight"), weight(p + "attn.in_proj_bias"));
    Values q, k, v;
    for (std::size_t r = 0; r < rows; ++r) {
      for (std::size_t i = 0; i < width; ++i) {
        q.push_back(qkv[r * 3 * width + i]);
        k.push_back(qkv[r * 3 * width + width + i]);
        v.push_back(qkv[r * 3 * width + 2 * width + i]);
      }
    }
    const auto n = static_cast<std::int64_t>(rows);
    add(linear(p + "attn.out_proj",
               attention({.queries = n,
                          .keys = n,
                          .heads = c_.num_heads,
                          .width = c_.head_dim(),
                          .kv = n,
                          .scale = 1 / std::sqrt(static_cast<double>(c_.head_dim()))},
                         q, k, v)
                   .o));
    add(linear(p + "mlp.2", map(linear(p + "mlp.0", norm("norm2")), silu)));
    return x;
  }

  student::Config c_;
  std::map<std::string, Values> weights_;
};

}  // namespace ballast::ref
