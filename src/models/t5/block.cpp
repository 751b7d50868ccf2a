#include "models/t5/block.h"

#include <algorithm>

#include "core/error.h"
#include "ops/add.h"
#include "ops/copy.h"
#include "ops/gated_gelu.h"
#include "ops/relu.h"
#include "ops/rms_norm.h"

namespace ballast::t5 {

ops::DropoutOptions RowsOfSamples::drop(const char* what) const {
  return {.probability = dropout,
          .site = ops::random_site("dropout", fmt::format("{}.{}", site, what), first_sample)};
}

std::int64_t heads_at_once(const Config& config, const Precision& precision, std::int64_t queries,
                           std::int64_t keys) {
  constexpr std::int64_t kScoreBytes = 64 << 20;
  if (ops::attention_is_fused(config.d_kv, precision.activation)) return 0;
  return std::max<std::int64_t>(1, kScoreBytes / (4 * queries * keys));
}

BlockLayers::Normed BlockLayers::norm(ProgramBuilder& pb, const Gain& g, Buffer x,
                                      DType dtype) const {
  const std::int64_t rows = pb.shape(x)[0];
  const Normed n = {.u = pb.temp("normed", pb.shape(x), dtype),
                    .r = pb.temp("r", {rows}, DType::f32)};
  ops::rms_norm_into(pb, x, g.weight, n.u, n.r, config_.eps);
  return n;
}

void BlockLayers::norm_backward(ProgramBuilder& pb, const Gain& g, Buffer x, Buffer r, Buffer du,
                                Buffer dx) const {
  const Buffer through = pb.temp("dnorm", pb.shape(x), precision_.activation);
  ops::rms_norm_backward(pb, x, r, g.weight, du, through, g.dweight);
  ops::add_into(pb, through, dx);
}

Buffer BlockLayers::flat(ProgramBuilder& pb, Buffer heads) const {
  return pb.reshape(heads, {pb.shape(heads)[0], config_.inner()});
}

Buffer BlockLayers::project(ProgramBuilder& pb, const AdaptedLinear& l, Buffer x) const {
  const std::int64_t rows = pb.shape(x)[0];
  const Buffer y = pb.temp("heads", {rows, config_.inner()}, precision_.activation);
  l.forward(pb, x, y);
  return pb.reshape(y, {rows, config_.heads, config_.d_kv});
}

Buffer BlockLayers::add_product(ProgramBuilder& pb, const AdaptedLinear& l, Buffer in, Buffer x,
                                bool in_place, const ops::DropoutOptions& drop) const {
  Buffer y = x;
  if (!in_place) {
    y = pb.temp("x", pb.shape(x), precision_.residual);
    ops::copy(pb, x, y);
  }
  if (drop.probability == 0 && !l.adapter.a) {
    l.multiply(pb, in, y, {.accumulate = true});
    return y;
  }
  const Buffer product = pb.temp("product", pb.shape(x), precision_.activation);
  l.forward(pb, in, product);
  if (drop.probability == 0) {
    ops::add_into(pb, product, y);
    return y;
  }
  ops::DropoutOptions added = drop;
  added.accumulate = true;
  ops::dropout_into(pb, product, y, added);
  return y;
}

Buffer BlockLayers::gradient_of_product(ProgramBuilder& pb, Buffer dx,
                                        const ops::DropoutOptions& drop) const {
  if (drop.probability == 0) return ops::cast(pb, dx, precision_.activation);
  const Buffer dy = pb.temp("dy", pb.shape(dx), precision_.activation);
  ops::dropout_into(pb, dx, dy, drop);
  return dy;
}

// [positions, samples H, D]: attention's view of rows, in which samples stand side by side.
Buffer BlockLayers::side_by_side(ProgramBuilder& pb, Buffer heads, std::int64_t samples) const {
  return pb.reshape(heads, {pb.shape(heads)[0] / samples, samples * config_.heads, config_.d_kv});
}

ops::AttentionOptions BlockLayers::attention_options(const ScoreBias& bias, bool causal,
                                                     const RowsOfSamples& rows,
                                                     const char* what) const {
  return {
      .scale = 1,
      .heads_per_group = policy_.heads_per_group > 0 ? policy_.heads_per_group : rows.heads_at_once,
      .bias = bias.bias,
      .dbias = bias.dbias,
      .causal = causal,
      .samples = rows.samples,
      .lengths = rows.lengths,
      .whole_scores = rows.whole_scores,
      .dropout = rows.dropout,
      .site = rows.dropout > 0
                  ? ops::random_site("dropout", fmt::format("{}.{}.weights", rows.site, what),
                                     rows.first_sample)
                  : ops::RandomSite()};
}

void BlockLayers::attend(ProgramBuilder& pb, AttentionKept& k, Buffer bias, bool causal,
                         const RowsOfSamples& rows, const char* what) const {
  k.o = pb.temp("o", pb.shape(k.q), pb.dtype(k.q));
  k.lse =
      pb.temp("lse", {rows.samples * config_.heads, pb.shape(k.q)[0] / rows.samples}, DType::f32);
  const auto seen = [&](Buffer x) { return side_by_side(pb, x, rows.samples); };
  ops::attention_into(pb, seen(k.q), seen(k.k), seen(k.v), seen(k.o), k.lse,
                      attention_options({.bias = bias, .dbias = {}}, causal, rows, what));
}

Buffer BlockLayers::self_attention(ProgramBuilder& pb, const AttentionInUse& w, Buffer x,
                                   Buffer bias, bool causal, AttentionKept* kept,
                                   const RowsOfSamples& rows) const {
  const auto scope = pb.scope("self");
  const Normed n = norm(pb, w.norm, x, precision_.activation);
  AttentionKept k;
  if (kept) k = *kept;
  k.x = x, k.u = n.u, k.r = n.r;
  k.q = project(pb, w.q, n.u);
  k.k = project(pb, w.k, n.u);
  k.v = project(pb, w.v, n.u);
  if (!k.o) attend(pb, k, bias, causal, rows, "self");
  if (kept) *kept = k;
  return add_product(pb, w.o, flat(pb, k.o), x, kept == nullptr, rows.drop("self"));
}

Buffer BlockLayers::cross_attention(ProgramBuilder& pb, const AttentionInUse& w, Buffer x,
                                    Buffer states, AttentionKept* kept,
                                    const RowsOfSamples& rows) const {
  const auto scope = pb.scope("cross");
  const Normed n = norm(pb, w.norm, x, precision_.activation);
  AttentionKept k;
  if (kept) k = *kept;
  k.x = x, k.u = n.u, k.r = n.r;
  k.q = project(pb, w.q, n.u);
  k.k = project(pb, w.k, states);
  k.v = project(pb, w.v, states);
  if (!k.o) attend(pb, k, {}, false, rows, "cross");
  if (kept) *kept = k;
  return add_product(pb, w.o, flat(pb, k.o), x, kept == nullptr, rows.drop("cross"));
}

// What wo reads: [L, F].
Buffer BlockLayers::hidden(ProgramBuilder& pb, const FeedForwardInUse& w, Buffer u,
                           FeedForwardKept* kept, const RowsOfSamples& rows) const {
  const Shape shape = {pb.shape(u)[0], config_.d_ff};
  const Buffer a = pb.temp("a", shape, precision_.activation);
  w.wi_0.forward(pb, u, a);
  const Buffer z = kept ? pb.temp("z", shape, precision_.activation) : a;
  Buffer b;
  if (config_.gated) {
    b = pb.temp("b", shape, precision_.activation);
    w.wi_1.forward(pb, u, b);
    ops::gated_gelu_into(pb, a, b, z);
  } else {
    ops::relu_into(pb, a, z);
  }
  if (rows.dropout > 0) ops::dropout_into(pb, z, z, rows.drop("hidden"));
  if (kept) kept->a = a, kept->b = b, kept->z = z;
  return z;
}

Buffer BlockLayers::feed_forward(ProgramBuilder& pb, const FeedForwardInUse& w, Buffer x,
                                 FeedForwardKept* kept, const RowsOfSamples& rows) const {
  const auto scope = pb.scope("ffn");
  if (kept) {
    feed_forward_again(pb, w, x, *kept, rows);
    return add_product(pb, w.wo, kept->z, x, false, rows.drop("ffn"));
  }
  check(rows.dropout == 0, "a feed-forward layer drops where backward follows only");
  for (const TokenChunk& c : token_chunks(policy_, pb.shape(x)[0])) {
    const Buffer part = pb.rows(x, c.first, c.rows);
    const Normed n = norm(pb, w.norm, part, precision_.activation);
    add_product(pb, w.wo, hidden(pb, w, n.u, nullptr, rows), part, true);
  }
  return x;
}

void BlockLayers::feed_forward_again(ProgramBuilder& pb, const FeedForwardInUse& w, Buffer x,
                                     FeedForwardKept& kept, const RowsOfSamples& rows) const {
  const Normed n = norm(pb, w.norm, x, precision_.activation);
  kept.x = x, kept.u = n.u, kept.r = n.r;
  hidden(pb, w, n.u, &kept, rows);
}

// Through Wo and attention to q, k and v.
BlockLayers::HeadGradients BlockLayers::attention_gradients(
    ProgramBuilder& pb, const AttentionInUse& w, const AttentionKept& kept, const ScoreBias& bias,
    bool causal, Buffer dx, const RowsOfSamples& rows, const char* what) const {
  const Buffer dout = pb.temp("do", pb.shape(kept.o), precision_.activation);
  const Buffer dy = gradient_of_product(pb, dx, rows.drop(what));
  w.o.backward(pb, flat(pb, kept.o), dy, flat(pb, dout), false);
  const HeadGradients d = {.q = pb.temp("dq", pb.shape(kept.q), precision_.activation),
                           .k = pb.temp("dk", pb.shape(kept.k), precision_.activation),
                           .v = pb.temp("dv", pb.shape(kept.v), precision_.activation)};
  const auto seen = [&](Buffer x) { return side_by_side(pb, x, rows.samples); };
  ops::attention_backward(
      pb,
      {.q = seen(kept.q), .k = seen(kept.k), .v = seen(kept.v), .o = seen(kept.o), .lse = kept.lse},
      seen(dout), seen(d.q), seen(d.k), seen(d.v), attention_options(bias, causal, rows, what));
  return d;
}

void BlockLayers::self_attention_backward(ProgramBuilder& pb, const AttentionInUse& w,
                                          const AttentionKept& kept, const ScoreBias& bias,
                                          bool causal, Buffer dx, const RowsOfSamples& rows) const {
  const auto scope = pb.scope("self");
  const HeadGradients d = attention_gradients(pb, w, kept, bias, causal, dx, rows, "self");
  const Buffer du = pb.temp("du", pb.shape(kept.u), precision_.activation);
  w.q.backward(pb, kept.u, flat(pb, d.q), du, false);
  w.k.backward(pb, kept.u, flat(pb, d.k), du, true);
  w.v.backward(pb, kept.u, flat(pb, d.v), du, true);
  norm_backward(pb, w.norm, kept.x, kept.r, du, dx);
}

void BlockLayers::cross_attention_backward(ProgramBuilder& pb, const AttentionInUse& w,
                                           const AttentionKept& kept, Buffer states, Buffer dstates,
                                           Buffer dx, const RowsOfSamples& rows) const {
  const auto scope = pb.scope("cross");
  const HeadGradients d = attention_gradients(pb, w, kept, {}, false, dx, rows, "cross");
  w.k.backward(pb, states, flat(pb, d.k), dstates, true);
  w.v.backward(pb, states, flat(pb, d.v), dstates, true);
  const Buffer du = pb.temp("du", pb.shape(kept.u), precision_.activation);
  w.q.backward(pb, kept.u, flat(pb, d.q), du, false);
  norm_backward(pb, w.norm, kept.x, kept.r, du, dx);
}

void BlockLayers::feed_forward_backward(ProgramBuilder& pb, const FeedForwardInUse& w,
                                        const FeedForwardKept& kept, Buffer dx,
                                        const RowsOfSamples& rows) const {
  const auto scope = pb.scope("ffn");
  const Buffer dz = pb.temp("dz", pb.shape(kept.z), precision_.activation);
  w.wo.backward(pb, kept.z, gradient_of_product(pb, dx, rows.drop("ffn")), dz, false);
  if (rows.dropout > 0) ops::dropout_into(pb, dz, dz, rows.drop("hidden"));
  const Buffer du = pb.temp("du", pb.shape(kept.u), precision_.activation);
  if (config_.gated) {
    const Buffer da = pb.temp("da", pb.shape(dz), precision_.activation);
    ops::gated_gelu_backward_into(pb, kept.a, kept.b, dz, da, dz);
    w.wi_0.backward(pb, kept.u, da, du, false);
    w.wi_1.backward(pb, kept.u, dz, du, true);
  } else {
    ops::relu_backward_into(pb, kept.z, dz, dz);
    w.wi_0.backward(pb, kept.u, dz, du, false);
  }
  norm_backward(pb, w.norm, kept.x, kept.r, du, dx);
}

}  // namespace ballast::t5
