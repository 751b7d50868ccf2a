#pragma once

// The whole diffusion transformer in double, one sample at a time, in the order of the formulas: no
// padding, no chunks, nothing kept.

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "core/to_size.h"
#include "models/wan/config.h"
#include "tests/ref/attention.h"
#include "tests/ref/gated_residual.h"
#include "tests/ref/gelu.h"
#include "tests/ref/layer_norm.h"
#include "tests/ref/linear.h"
#include "tests/ref/rms_norm.h"
#include "tests/ref/rope_3d.h"
#include "tests/ref/silu.h"
#include "tests/ref/sinusoid.h"
#include "tests/ref/unpatchify.h"

namespace ballast::ref {

struct DitSample {
  wan::LatentSize size;
  std::vector<double> latent;              // [out, f, h, w]
  std::vector<double> conditioning;        // [in - out, f, h, w]
  std::vector<double> context;             // [text_len, text_dim], rows behind the text are zero
  std::vector<double> target;              // [out, f, h, w]; for the loss
  std::vector<std::int32_t> timestep_row;  // [L]
};

class Dit {
 public:
  using Values = std::vector<double>;

  Dit(const wan::Config& config, std::map<std::string, Values> weights)
      : c_(config), weights_(std::move(weights)) {}

  std::map<std::string, Values>& weights() { return weights_; }

  // Velocity [out, f, h, w].
  Values forward(const DitSample& s, const Values& timesteps) const {
    const Values hidden =
        map(linear("time_embedding.0", sinusoid(timesteps, u(c_.freq_dim))), silu);
    const Values e = linear("time_embedding.2", hidden);          // [T, C]
    const Values e0 = linear("time_projection.1", map(e, silu));  // [T, 6C]
    const Values context =
        linear("text_embedding.2", map(linear("text_embedding.0", s.context), gelu));  // [S, C]
    Values latent = s.latent;
    latent.insert(latent.end(), s.conditioning.begin(), s.conditioning.end());
    Values x = linear("patch_embedding", patchify(dims(s, c_.in_dim), latent));  // [L, C]
    const Values rope = rope_3d_table(s.size.grid(), c_.head_dim());
    for (std::int64_t b = 0; b < c_.layers; ++b) {
      x = block("blocks." + std::to_string(b) + ".", std::move(x), s, e0, context, rope);
    }
    const std::vector<Values> m = modulation("head.modulation", e, 2, true);
    const Values z = norm(x, m[1], m[0], s.timestep_row);
    return unpatchify(dims(s, c_.out_dim), linear("head.head", z));
  }

  // Mean squared difference over all elements of all samples.
  double loss(const std::vector<DitSample>& samples, const Values& timesteps) const {
    double sum = 0, count = 0;
    for (const DitSample& s : samples) {
      const Values v = forward(s, timesteps);
      for (std::size_t i = 0; i < v.size(); ++i) {
        sum += (v[i] - s.target[i]) * (v[i] - s.target[i]);
      }
      count += static_cast<double>(v.size());
    }
    return sum / count;
  }

 private:
  static std::size_t u(std::int64_t n) { return to_size(n); }
  static LatentSize dims(const DitSample& s, std::int64_t channels) {
    return {channels, s.size.frames, s.size.height, s.size.width};
  }
  template <class F>
  static Values map(Values x, F f) {
    for (double& v : x) v = f(v);
    return x;
  }
  const Values& weight(const std::string& name) const { return weights_.at(name); }

  Values linear(const std::string& module, const Values& x) const {
    const Values& w = weight(module + ".weight");
    const Values& b = weight(module + ".bias");
    const std::size_t inputs = w.size() / b.size();
    return ref::linear({x.size() / inputs, inputs, b.size()}, x, w, b);
  }

  // By row a [T, C] table: the learned row plus that of each timestep; one row of e for all when
  // shared.
  std::vector<Values> modulation(const std::string& name, const Values& e, std::size_t rows,
                                 bool shared) const {
    const std::size_t width = u(c_.dim), in = shared ? width : rows * width, t_rows = e.size() / in;
    std::vector<Values> m(rows);
    for (std::size_t k = 0; k < rows; ++k) {
      for (std::size_t t = 0; t < t_rows; ++t) {
        for (std::size_t i = 0; i < width; ++i) {
          m[k].push_back(weight(name)[k * width + i] + e[t * in + (shared ? 0 : k * width) + i]);
        }
      }
    }
    return m;
  }

  Values norm(const Values& x, Values scale, Values shift,
              const std::vector<std::int32_t>& index) const {
    return layer_norm(
               x, u(c_.dim),
               {.mul = std::move(scale), .add = std::move(shift), .index = index, .one_plus = true},
               c_.eps)
        .y;
  }

  Values attend(const Values& q, const Values& k, const Values& v) const {
    const auto keys = static_cast<std::int64_t>(k.size()) / c_.dim;
    return attention({.queries = static_cast<std::int64_t>(q.size()) / c_.dim,
                      .keys = keys,
                      .heads = c_.heads,
                      .width = c_.head_dim(),
                      .kv = keys,
                      .scale = 1 / std::sqrt(static_cast<double>(c_.head_dim()))},
                     q, k, v)
        .o;
  }

  Values block(const std::string& p, Values x, const DitSample& s, const Values& e0,
               const Values& context, const Values& rope) const {
    const std::vector<Values> m = modulation(p + "modulation", e0, 6, false);
    const auto normed = [&](const std::string& attention, const char* part, const Values& in) {
      return rms_norm(linear(p + attention + part, in),
                      weight(p + attention + "norm_" + part + ".weight"), c_.eps)
          .y;
    };
    const auto rotated = [&](const Values& in) {
      return rope_3d(in, u(c_.heads), u(c_.head_dim()), rope, false);
    };
    const auto add = [&](const Values& y, const Values& gate) {
      x = gated_residual(x, y, u(c_.dim), gate,
                         gate.empty() ? std::vector<std::int32_t>() : s.timestep_row);
    };

    Values z = norm(x, m[1], m[0], s.timestep_row);
    add(linear(p + "self_attn.o",
               attend(rotated(normed("self_attn.", "q", z)), rotated(normed("self_attn.", "k", z)),
                      linear(p + "self_attn.v", z))),
        m[2]);

    z = layer_norm(
            x, u(c_.dim),
            {.mul = weight(p + "norm3.weight"), .add = weight(p + "norm3.bias"), .index = {}},
            c_.eps)
            .y;
    add(linear(p + "cross_attn.o",
               attend(normed("cross_attn.", "q", z), normed("cross_attn.", "k", context),
                      linear(p + "cross_attn.v", context))),
        {});

    z = norm(x, m[4], m[3], s.timestep_row);
    add(linear(p + "ffn.2", map(linear(p + "ffn.0", z), gelu)), m[5]);
    return x;
  }

  wan::Config c_;
  std::map<std::string, Values> weights_;
};

}  // namespace ballast::ref
