#include "models/t5/seq2seq_pass.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "models/t5/encoder.h"
#include "ops/copy.h"
#include "ops/cross_entropy.h"
#include "ops/embedding.h"
#include "ops/fill.h"
#include "ops/quantum.h"
#include "ops/relative_bias.h"

namespace ballast::t5 {
namespace {

constexpr DType f32 = DType::f32;

// visit(buffer) for all that a block keeps for backward.
template <class Visit>
void each_kept(BlockKept& k, Visit&& visit) {
  for (AttentionKept* a : {&k.self, &k.cross}) {
    for (Buffer* b : {&a->x, &a->u, &a->r, &a->q, &a->k, &a->v, &a->o, &a->lse}) {
      if (*b) visit(*b);
    }
  }
  for (Buffer* b : {&k.ffn.x, &k.ffn.u, &k.ffn.r, &k.ffn.a, &k.ffn.b, &k.ffn.z}) {
    if (*b) visit(*b);
  }
}

}  // namespace

Seq2SeqPass::Seq2SeqPass(const Seq2SeqJob& job, BlockWeights& weights,
                         std::vector<GroupGradients>& gradients, const StepIo& io,
                         Buffer label_weight)
    : job_(job),
      config_(job.config),
      gradients_(gradients),
      io_(io),
      label_weight_(label_weight),
      layers_(job.config, job.policy, job.precision),
      weights_(job.config, weights) {
  samples_.resize(io.samples.size());
}

void Seq2SeqPass::record(ProgramBuilder& pb) {
  weights_.begin(pb);
  upload_inputs(pb);
  embed(pb);
  for (std::int64_t b = 0; b < config_.layers; ++b) forward_block(pb, Side::encoder, b);
  end_encoder(pb);
  for (std::int64_t b = 0; b < config_.decoder_layers; ++b) forward_block(pb, Side::decoder, b);
  if (job_.trains) begin_gradients(pb, kSmallGroup);
  head_and_loss(pb);
  if (job_.trains) {
    backward_stack(pb, Side::decoder);
    backward_stack(pb, Side::encoder);
    embed_backward(pb);
    end_gradients(pb, kSmallGroup);
  }
  weights_.end(pb);
}

void Seq2SeqPass::upload_inputs(ProgramBuilder& pb) {
  const auto scope = pb.scope("inputs");
  const auto up = [&](const char* name, Buffer from) {
    const Buffer to = pb.temp(name, pb.shape(from), pb.dtype(from), Role::input);
    ops::copy(pb, from, to, Lane::upload);
    return to;
  };
  label_weight_ = up("label_weight", label_weight_);
  for (std::size_t i = 0; i < samples_.size(); ++i) {
    SampleState& s = samples_[i];
    const PairIo& io = io_.samples[i];
    s.labels = up("labels", io.labels);
    for (const Side side : {Side::encoder, Side::decoder}) {
      StackState& t = stack(s, side);
      t.ids = up("ids", side == Side::encoder ? io.source : io.decoder_input);
      t.tokens = pb.shape(t.ids)[0];
      t.kept.resize(static_cast<std::size_t>(layers_of(config_, side)));
    }
  }
}

// x = E[ids], for both stacks from the same table.
void Seq2SeqPass::embed(ProgramBuilder& pb) {
  const auto scope = pb.scope("embed");
  const Buffer table = weights_.embedding(pb).data;
  for (SampleState& s : samples_) {
    for (const Side side : {Side::encoder, Side::decoder}) {
      StackState& t = stack(s, side);
      t.x = pb.temp("x", {t.tokens, config_.d_model}, job_.precision.residual);
      ops::embedding_into(pb, table, t.ids, t.x);
    }
  }
}

// What the policy keeps, on the device or in host memory.
BlockKept Seq2SeqPass::what_stays(ProgramBuilder& pb, const BlockKept& all) const {
  BlockKept stays = all;
  if (job_.policy.activations != Activations::kept) {
    stays = {};
    stays.self.x = all.self.x;
    if (job_.policy.activations == Activations::attention_kept) {
      stays.self.o = all.self.o, stays.self.lse = all.self.lse;
      stays.cross.o = all.cross.o, stays.cross.lse = all.cross.lse;
    }
  }
  each_kept(stays, [&](Buffer& b) {
    pb.set_role(b, Role::checkpoint);
    if (!job_.policy.offload) return;
    const Buffer host =
        pb.temp("offloaded", pb.shape(b), pb.dtype(b), Role::checkpoint, Tier::host);
    ops::copy(pb, b, host, Lane::download);
    b = host;
  });
  return stays;
}

void Seq2SeqPass::forward_block(ProgramBuilder& pb, Side side, std::int64_t block) {
  const auto scope = pb.scope(fmt::format("{}.{}", name_of(side), block));
  const BlockInUse w = weights_.block(pb, side, block);
  for (SampleState& s : samples_) {
    StackState& t = stack(s, side);
    const Buffer bias = score_bias(pb, config_, side, weights_.table(side, block), t.tokens);
    BlockKept all;
    const bool keeps = job_.trains;
    t.x = layers_.self_attention(pb, w.self, t.x, bias, side == Side::decoder,
                                 keeps ? &all.self : nullptr);
    if (side == Side::decoder) {
      t.x = layers_.cross_attention(pb, w.cross, t.x, s.states, keeps ? &all.cross : nullptr);
    }
    t.x = layers_.feed_forward(pb, w.ffn, t.x, keeps ? &all.ffn : nullptr);
    if (keeps) t.kept[static_cast<std::size_t>(block)] = what_stays(pb, all);
  }
}

void Seq2SeqPass::end_encoder(ProgramBuilder& pb) {
  const auto scope = pb.scope("encoder.final");
  for (std::size_t i = 0; i < samples_.size(); ++i) {
    SampleState& s = samples_[i];
    StackState& t = stack(s, Side::encoder);
    const BlockLayers::Normed n =
        layers_.norm(pb, weights_.final_norm(Side::encoder), t.x, job_.precision.activation);
    s.states = n.u, t.r = n.r;
    if (!io_.samples[i].states) continue;
    ops::copy(pb, s.states, io_.samples[i].states, Lane::download);
  }
}

// logits = alpha y W^T, a quantum of rows at a time; the loss's gradient takes their place.
void Seq2SeqPass::head_and_loss(ProgramBuilder& pb) {
  const auto scope = pb.scope("head");
  const int group = head_group(config_);
  const float alpha =
      config_.scaled_head ? 1 / std::sqrt(static_cast<float>(config_.d_model)) : 1.0f;
  const WeightBuffers head = weights_.head(pb);
  const ops::LinearWeight w = {.weight = head.data, .bias = {}, .scale = head.scale};
  if (job_.trains) begin_gradients(pb, group);
  for (std::size_t i = 0; i < samples_.size(); ++i) {
    SampleState& s = samples_[i];
    StackState& t = stack(s, Side::decoder);
    const BlockLayers::Normed n =
        layers_.norm(pb, weights_.final_norm(Side::decoder), t.x, job_.precision.activation);
    s.y = n.u, t.r = n.r;
    const Buffer losses = pb.temp("losses", {t.tokens}, f32, Role::output);
    if (job_.trains) s.dy = pb.temp("dy", pb.shape(s.y), job_.precision.activation);
    for (std::int64_t first = 0; first < t.tokens; first += kTokenQuantum) {
      const std::int64_t rows = std::min(kTokenQuantum, t.tokens - first);
      const auto cut = [&](Buffer b) { return pb.rows(b, first, rows); };
      const Buffer logits = pb.temp("logits", {rows, config_.vocabulary}, f32);
      ops::linear_into(pb, cut(s.y), w, logits, {.alpha = alpha});
      if (io_.samples[i].logits) {
        ops::copy(pb, logits, cut(io_.samples[i].logits), Lane::download);
      }
      ops::cross_entropy(pb, {.x = logits,
                              .labels = cut(s.labels),
                              .weight = label_weight_,
                              .losses = cut(losses),
                              .dx = job_.trains ? logits : Buffer()});
      if (!job_.trains) continue;
      const Buffer dlogits = ops::cast(pb, logits, job_.precision.activation);
      ops::linear_dx_into(pb, dlogits, w, cut(s.dy), {.alpha = alpha});
      ops::linear_dw(pb, cut(s.y), dlogits, gradients(group)[0], {}, alpha);
    }
    ops::copy(pb, losses, io_.samples[i].losses, Lane::download);
  }
  // A tied table gets more from the embeddings.
  if (job_.trains && !config_.tied) end_gradients(pb, group);
}

void Seq2SeqPass::backward_stack(ProgramBuilder& pb, Side side) {
  const Gain norm = weights_.final_norm(side, gradients(kSmallGroup));
  for (SampleState& s : samples_) {
    StackState& t = stack(s, side);
    t.dx = pb.temp("dx", {t.tokens, config_.d_model}, job_.precision.residual);
    ops::fill(pb, t.dx, 0);
    layers_.norm_backward(pb, norm, t.x, t.r, side == Side::decoder ? s.dy : s.dstates, t.dx);
    if (side == Side::decoder) {
      s.dstates = pb.temp("dstates", pb.shape(s.states), f32, Role::gradient);
      ops::fill(pb, s.dstates, 0);
    }
    if (config_.bias_per_block) continue;
    t.dbias = pb.temp("dbias", {config_.heads, 2 * t.tokens - 1}, f32, Role::gradient);
    ops::fill(pb, t.dbias, 0);
  }
  for (std::int64_t b = layers_of(config_, side); b-- > 0;) backward_block(pb, side, b);
  if (config_.bias_per_block) return;
  for (SampleState& s : samples_) {
    StackState& t = stack(s, side);
    ops::relative_bias_backward(pb, t.dbias,
                                weights_.table_gradient(side, 0, gradients(kSmallGroup)),
                                {.buckets = config_.relative(side == Side::encoder),
                                 .queries = t.tokens,
                                 .keys = t.tokens});
  }
}

// Brings back what waits in host memory and computes again what was not kept.
void Seq2SeqPass::restore(ProgramBuilder& pb, Side side, const BlockInUse& w, const SampleState& s,
                          Buffer bias, BlockKept& kept) const {
  if (job_.policy.offload) {
    each_kept(kept, [&](Buffer& b) {
      const Buffer back = pb.temp("brought_back", pb.shape(b), pb.dtype(b), Role::checkpoint);
      ops::copy(pb, b, back, Lane::upload);
      b = back;
    });
  }
  if (job_.policy.activations == Activations::kept) return;
  Buffer x =
      layers_.self_attention(pb, w.self, kept.self.x, bias, side == Side::decoder, &kept.self);
  if (side == Side::decoder) x = layers_.cross_attention(pb, w.cross, x, s.states, &kept.cross);
  layers_.feed_forward_again(pb, w.ffn, x, kept.ffn);
}

void Seq2SeqPass::backward_block(ProgramBuilder& pb, Side side, std::int64_t block) {
  const auto scope = pb.scope(fmt::format("{}.{}.backward", name_of(side), block));
  const int group = block_group(config_, side, block);
  begin_gradients(pb, group);
  const BlockInUse w = weights_.block(pb, side, block, gradients(group));
  for (SampleState& s : samples_) {
    StackState& t = stack(s, side);
    ScoreBias bias = {.bias = score_bias(pb, config_, side, weights_.table(side, block), t.tokens),
                      .dbias = t.dbias};
    if (config_.bias_per_block) {
      bias.dbias = pb.temp("dbias", pb.shape(bias.bias), f32, Role::gradient);
      ops::fill(pb, bias.dbias, 0);
    }
    BlockKept kept = t.kept[static_cast<std::size_t>(block)];
    restore(pb, side, w, s, bias.bias, kept);
    layers_.feed_forward_backward(pb, w.ffn, kept.ffn, t.dx);
    if (side == Side::decoder) {
      layers_.cross_attention_backward(pb, w.cross, kept.cross, s.states, s.dstates, t.dx);
    }
    layers_.self_attention_backward(pb, w.self, kept.self, bias, side == Side::decoder, t.dx);
    if (config_.bias_per_block) {
      ops::relative_bias_backward(pb, bias.dbias,
                                  weights_.table_gradient(side, block, gradients(kSmallGroup)),
                                  {.buckets = config_.relative(side == Side::encoder),
                                   .queries = t.tokens,
                                   .keys = t.tokens});
    }
  }
  end_gradients(pb, group);
}

// dE[id] += dx of every token with that id, of both stacks.
void Seq2SeqPass::embed_backward(ProgramBuilder& pb) {
  const auto scope = pb.scope("embed.backward");
  const int group = embedding_group(config_);
  if (!config_.tied) begin_gradients(pb, group);
  for (const Side side : {Side::decoder, Side::encoder}) {
    for (SampleState& s : samples_) {
      const StackState& t = stack(s, side);
      ops::embedding_backward(pb, t.ids, t.dx, gradients(group)[0]);
    }
  }
  end_gradients(pb, group);
}

WeightsInUse::Gradients Seq2SeqPass::gradients(int group) const {
  if (!job_.trains) return {};
  return gradients_[static_cast<std::size_t>(group)].device;
}

// With gradients that wait in host memory a temporary takes their place while backward adds to it.
void Seq2SeqPass::begin_gradients(ProgramBuilder& pb, int group) {
  GroupGradients& grads = gradients_[static_cast<std::size_t>(group)];
  grads.device.clear();
  for (const Buffer home : grads.home) {
    const bool stays = pb.tier(home) == Tier::device;
    grads.device.push_back(stays ? home : pb.temp("grad", pb.shape(home), f32, Role::gradient));
    ops::fill(pb, grads.device.back(), 0);
  }
}

void Seq2SeqPass::end_gradients(ProgramBuilder& pb, int group) {
  const GroupGradients& grads = gradients_[static_cast<std::size_t>(group)];
  for (std::size_t i = 0; i < grads.home.size(); ++i) {
    if (grads.device[i] == grads.home[i]) continue;
    ops::copy(pb, grads.device[i], grads.home[i], Lane::download);
  }
}

}  // namespace ballast::t5
