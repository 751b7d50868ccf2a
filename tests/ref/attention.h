#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "core/to_size.h"

namespace ballast::ref {

// Dense [L, H, D] tensors; keys at positions >= kv take no part, and with causal those behind the
// query's own position.
struct AttentionSizes {
  std::int64_t queries, keys, heads, width;
  std::int64_t kv;
  double scale;
  bool causal = false;

  std::int64_t visible(std::int64_t query) const { return causal ? std::min(kv, query + 1) : kv; }
  std::size_t at(std::int64_t row, std::int64_t head, std::int64_t d) const {
    return to_size((row * heads + head) * width + d);
  }
  std::size_t q_size() const { return to_size(queries * heads * width); }
  std::size_t k_size() const { return to_size(keys * heads * width); }
  // Of a bias, [H, Lq, Lk].
  std::size_t score(std::int64_t head, std::int64_t query, std::int64_t key) const {
    return to_size((head * queries + query) * keys + key);
  }
  std::size_t scores() const { return to_size(heads * queries * keys); }
};

// The fields called size add up the magnitudes of all terms of a result: the rounding errors of a
// computation in f32 are a small share of that, however much the terms cancel.
struct AttentionResult {
  std::vector<double> o, lse;  // [Lq, H, D], [H, Lq]
  std::vector<double> o_size;
};

// The scores of one query: scale q k^T + bias over the keys that take part. An empty bias is none.
inline std::vector<double> attention_scores(const AttentionSizes& n, const std::vector<double>& q,
                                            const std::vector<double>& k,
                                            const std::vector<double>& bias, std::int64_t i,
                                            std::int64_t h) {
  std::vector<double> s(to_size(n.visible(i)), 0.0);
  for (std::int64_t j = 0; j < n.visible(i); ++j) {
    double& sum = s[to_size(j)];
    for (std::int64_t d = 0; d < n.width; ++d) sum += q[n.at(i, h, d)] * k[n.at(j, h, d)];
    sum *= n.scale;
    if (!bias.empty()) sum += bias[n.score(h, i, j)];
  }
  return s;
}

// keep: [H, Lq, Lk], what a dropout multiplies the weights by; empty: nothing is dropped.
inline AttentionResult attention(const AttentionSizes& n, const std::vector<double>& q,
                                 const std::vector<double>& k, const std::vector<double>& v,
                                 const std::vector<double>& bias = {},
                                 const std::vector<double>& keep = {}) {
  AttentionResult r;
  r.o.assign(n.q_size(), 0.0);
  r.o_size = r.o;
  r.lse.assign(to_size(n.heads * n.queries), 0.0);
  for (std::int64_t h = 0; h < n.heads; ++h) {
    for (std::int64_t i = 0; i < n.queries; ++i) {
      const std::vector<double> s = attention_scores(n, q, k, bias, i, h);
      double most = -std::numeric_limits<double>::infinity(), sum = 0;
      for (const double x : s) most = std::max(most, x);
      for (const double x : s) sum += std::exp(x - most);
      const double lse = s.empty() ? most : most + std::log(sum);
      r.lse[to_size(h * n.queries + i)] = lse;
      for (std::int64_t j = 0; j < n.visible(i); ++j) {
        const double p =
            std::exp(s[to_size(j)] - lse) * (keep.empty() ? 1 : keep[n.score(h, i, j)]);
        for (std::int64_t d = 0; d < n.width; ++d) {
          const double term = p * v[n.at(j, h, d)];
          r.o[n.at(i, h, d)] += term;
          r.o_size[n.at(i, h, d)] += std::abs(term);
        }
      }
    }
  }
  return r;
}

struct AttentionGradients {
  std::vector<double> dq, dk, dv, dbias;  // dbias: [H, Lq, Lk]
  std::vector<double> dq_size, dk_size, dv_size, dbias_size;
};

// P = e^(S - lse), dS = P * (dout v^T - rowsum(dout * o)); dv = P^T dout, dk = scale dS^T q,
// dq = scale dS k, dbias = dS. Takes o and lse as forward left them, rounded or not.
inline AttentionGradients attention_backward(
    const AttentionSizes& n, const std::vector<double>& q, const std::vector<double>& k,
    const std::vector<double>& v, const std::vector<double>& o, const std::vector<double>& lse,
    const std::vector<double>& dout, const std::vector<double>& bias = {},
    const std::vector<double>& keep = {}) {
  AttentionGradients g;
  g.dq.assign(n.q_size(), 0.0);
  g.dk.assign(n.k_size(), 0.0);
  g.dv.assign(n.k_size(), 0.0);
  g.dbias.assign(n.scores(), 0.0);
  g.dq_size = g.dq, g.dk_size = g.dk, g.dv_size = g.dv, g.dbias_size = g.dbias;
  for (std::int64_t h = 0; h < n.heads; ++h) {
    for (std::int64_t i = 0; i < n.queries; ++i) {
      const std::vector<double> s = attention_scores(n, q, k, bias, i, h);
      double delta = 0, delta_size = 0;
      for (std::int64_t d = 0; d < n.width; ++d) {
        const double term = dout[n.at(i, h, d)] * o[n.at(i, h, d)];
        delta += term;
        delta_size += std::abs(term);
      }
      for (std::int64_t j = 0; j < n.visible(i); ++j) {
        const double p = std::exp(s[to_size(j)] - lse[to_size(h * n.queries + i)]);
        double dp = 0, dp_size = 0;
        for (std::int64_t d = 0; d < n.width; ++d) {
          const double term = dout[n.at(i, h, d)] * v[n.at(j, h, d)];
          dp += term;
          dp_size += std::abs(term);
        }
        const double kept = keep.empty() ? 1 : keep[n.score(h, i, j)];
        dp *= kept, dp_size *= kept;
        g.dbias[n.score(h, i, j)] = p * (dp - delta);
        g.dbias_size[n.score(h, i, j)] = p * (dp_size + delta_size);
        const double ds = n.scale * p * (dp - delta);
        const double ds_size = n.scale * p * (dp_size + delta_size);
        for (std::int64_t d = 0; d < n.width; ++d) {
          const double qd = q[n.at(i, h, d)], kd = k[n.at(j, h, d)], dod = dout[n.at(i, h, d)];
          g.dv[n.at(j, h, d)] += p * kept * dod;
          g.dk[n.at(j, h, d)] += ds * qd;
          g.dq[n.at(i, h, d)] += ds * kd;
          g.dv_size[n.at(j, h, d)] += p * kept * std::abs(dod);
          g.dk_size[n.at(j, h, d)] += ds_size * std::abs(qd);
          g.dq_size[n.at(i, h, d)] += ds_size * std::abs(kd);
        }
      }
    }
  }
  return g;
}

}  // namespace ballast::ref
