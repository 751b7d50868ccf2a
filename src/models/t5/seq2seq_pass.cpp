#include "models/t5/seq2seq_pass.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "models/t5/encoder.h"
#include "ops/copy.h"
#include "ops/cross_entropy.h"
#include "ops/dropout.h"
#include "ops/embedding.h"
#include "ops/fill.h"
#include "ops/kernels/token_quantum.h"
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

// to[j, i, ...] = from[i, j, ...]: samples and positions change places.
void copy_swapped(ProgramBuilder& pb, Buffer from, Buffer to) {
  const double bytes = 2.0 * static_cast<double>(pb.shape(to).elements()) *
                       static_cast<double>(size_of(pb.dtype(to)));
  pb.emit("copy", {.reads = {from}, .writes = {to}, .cost = {.work = Work::memory, .bytes = bytes}},
          [=](const Bindings& b) {
            ConstTensorView swapped = b.in(from);
            std::swap(swapped.shape[0], swapped.shape[1]);
            std::swap(swapped.strides[0], swapped.strides[1]);
            ops::copy({.from = swapped, .to = b.out(to)}, b.stream());
          });
}

// visit(layer) for all products of a block.
template <class Visit>
void each_linear(BlockInUse& w, Visit&& visit) {
  for (AttentionInUse* a : {&w.self, &w.cross}) {
    for (AdaptedLinear* l : {&a->q, &a->k, &a->v, &a->o}) visit(*l);
  }
  for (AdaptedLinear* l : {&w.ffn.wi_0, &w.ffn.wi_1, &w.ffn.wo}) visit(*l);
}

}  // namespace

Seq2SeqPass::Seq2SeqPass(const Seq2SeqJob& job, BlockWeights& weights,
                         std::vector<PackedGradients>& gradients, const Adapters& adapters,
                         const StepIo& io, bool trains)
    : job_(job),
      config_(job.config),
      gradients_(gradients),
      io_(io),
      trains_(trains),
      weights_train_(trains && !job.lora),
      adapters_(adapters),
      layers_(job.config, job.policy, job.precision),
      weights_(job.config, weights) {
  micro_batches_.resize(io.micro_batches.size());
}

void Seq2SeqPass::record(ProgramBuilder& pb) {
  weights_.begin(pb);
  upload_inputs(pb);
  embed(pb);
  for (std::int64_t b = 0; b < config_.layers; ++b) forward_block(pb, Side::encoder, b);
  end_encoder(pb);
  for (std::int64_t b = 0; b < config_.decoder_layers; ++b) forward_block(pb, Side::decoder, b);
  if (weights_train_) begin_gradients(pb, kSmallGroup);
  head_and_loss(pb);
  if (trains_) {
    backward_stack(pb, Side::decoder);
    backward_stack(pb, Side::encoder);
    if (weights_train_) {
      embed_backward(pb);
      end_gradients(pb, kSmallGroup);
    }
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
  // [samples, L] in order of positions: [L samples].
  const auto by_position = [&](const char* name, Buffer from) {
    const Shape& s = pb.shape(from);
    const Buffer to = pb.temp(name, {s[1], s[0]}, pb.dtype(from), Role::input);
    copy_swapped(pb, up(name, from), to);
    return pb.reshape(to, {s.elements()});
  };
  for (std::size_t i = 0; i < micro_batches_.size(); ++i) {
    MicroBatch& m = micro_batches_[i];
    const MicroBatchIo& io = io_.micro_batches[i];
    m.labels = by_position("labels", io.labels);
    m.label_weight = up("label_weight", io.label_weight);
    m.lengths = io.source_lengths;
    m.first_sample = static_cast<std::int64_t>(i) * io_.shape.samples;
    for (const Side side : {Side::encoder, Side::decoder}) {
      StackState& t = stack(m, side);
      const Buffer ids = side == Side::encoder ? io.source : io.decoder_input;
      t.tokens = pb.shape(ids)[1];
      t.ids = by_position("ids", ids);
      t.kept.resize(to_size(layers_of(config_, side)));
    }
  }
}

RowsOfSamples Seq2SeqPass::rows_of(const MicroBatch& m, Side side, const std::string& site,
                                   bool cross) const {
  const std::int64_t queries = side == Side::encoder ? io_.shape.source : io_.shape.target;
  const std::int64_t keys = side == Side::encoder || cross ? io_.shape.source : io_.shape.target;
  return {.samples = io_.shape.samples,
          .heads_at_once = heads_at_once(config_, job_.precision, queries, keys),
          .lengths = side == Side::encoder || cross ? m.lengths : Buffer(),
          .whole_scores = true,
          .dropout = trains_ ? job_.dropout : 0,
          .site = site,
          .first_sample = m.first_sample};
}

RowsOfSamples Seq2SeqPass::rows_of(const MicroBatch& m, Side side, std::int64_t block,
                                   bool cross) const {
  return rows_of(m, side, fmt::format("{}.{}", name_of(side), block), cross);
}

// x = dropout(E[ids]), for both stacks from the same table.
void Seq2SeqPass::embed(ProgramBuilder& pb) {
  const auto scope = pb.scope("embed");
  const Buffer table = weights_.embedding(pb).data;
  for (MicroBatch& m : micro_batches_) {
    for (const Side side : {Side::encoder, Side::decoder}) {
      StackState& t = stack(m, side);
      t.x = pb.temp("x", {rows(t), config_.d_model}, job_.precision.residual);
      ops::embedding_into(pb, table, t.ids, t.x);
      const RowsOfSamples r = rows_of(m, side, name_of(side));
      if (r.dropout > 0) ops::dropout_into(pb, t.x, t.x, r.drop("embedding"));
    }
  }
}

Buffer Seq2SeqPass::stack_bias(ProgramBuilder& pb, Side side, std::int64_t block) {
  const std::int64_t tokens = stack(micro_batches_[0], side).tokens;
  const Buffer table = weights_.table(side, block);
  if (config_.bias_per_block) return score_bias(pb, config_, side, table, tokens);
  Buffer& bias = bias_[to_size(side)];
  if (!bias) bias = score_bias(pb, config_, side, table, tokens);
  return bias;
}

bool Seq2SeqPass::keeps_all(Side side, std::int64_t block) const {
  if (job_.policy.activations == Activations::kept) return true;
  const std::int64_t index = block + (side == Side::decoder ? config_.layers : 0);
  return evenly_chosen(index, config_.layers + config_.decoder_layers, job_.policy.kept_blocks);
}

BlockInUse Seq2SeqPass::use_block(ProgramBuilder& pb, Side side, std::int64_t block,
                                  bool backward) {
  const int group = block_group(config_, side, block);
  BlockInUse w =
      weights_.block(pb, side, block, backward ? gradients(group) : WeightsInUse::Gradients());
  adapters_.attach(w, config_, side, block,
                   !trains_   ? Adapters::Use::infer
                   : backward ? Adapters::Use::backward
                              : Adapters::Use::forward);
  return w;
}

void Seq2SeqPass::use_for(BlockInUse& w, const MicroBatch& m) const {
  if (adapters_.empty()) return;
  each_linear(w, [&](AdaptedLinear& l) { l.adapter.dropout.site.sample = m.first_sample; });
}

// What the policy keeps, on the device or in host memory.
BlockKept Seq2SeqPass::what_stays(ProgramBuilder& pb, const BlockKept& all, bool everything) const {
  BlockKept stays = all;
  if (!everything) {
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
  BlockInUse w = use_block(pb, side, block, false);
  const Buffer bias = stack_bias(pb, side, block);
  for (MicroBatch& m : micro_batches_) {
    use_for(w, m);
    StackState& t = stack(m, side);
    BlockKept all;
    const auto kept = [&](auto& part) { return trains_ ? &part : nullptr; };
    const RowsOfSamples rows = rows_of(m, side, block);
    t.x =
        layers_.self_attention(pb, w.self, t.x, bias, side == Side::decoder, kept(all.self), rows);
    if (side == Side::decoder) {
      t.x = layers_.cross_attention(pb, w.cross, t.x, m.states, kept(all.cross),
                                    rows_of(m, side, block, true));
    }
    t.x = layers_.feed_forward(pb, w.ffn, t.x, kept(all.ffn), rows);
    if (!trains_) continue;
    t.kept[to_size(block)] = what_stays(pb, all, keeps_all(side, block));
  }
}

void Seq2SeqPass::end_encoder(ProgramBuilder& pb) {
  const auto scope = pb.scope("encoder.final");
  for (std::size_t i = 0; i < micro_batches_.size(); ++i) {
    MicroBatch& m = micro_batches_[i];
    StackState& t = stack(m, Side::encoder);
    const BlockLayers::Normed n =
        layers_.norm(pb, weights_.final_norm(Side::encoder), t.x, job_.precision.activation);
    m.states = n.u, t.r = n.r;
    const RowsOfSamples r = rows_of(m, Side::encoder, "encoder");
    if (r.dropout > 0) ops::dropout_into(pb, m.states, m.states, r.drop("final"));
    if (io_.micro_batches[i].states) take(pb, m.states, io_.micro_batches[i].states);
  }
}

// Rows by position go to the host sample by sample.
void Seq2SeqPass::take(ProgramBuilder& pb, Buffer rows, Buffer to) const {
  const std::int64_t samples = io_.shape.samples, all = pb.shape(rows)[0];
  const std::int64_t width = pb.shape(rows).elements() / all;
  const Buffer mine = pb.temp("taken", {samples, all / samples, width}, f32, Role::output);
  copy_swapped(pb, pb.reshape(rows, {all / samples, samples, width}), mine);
  ops::copy(pb, mine, pb.reshape(to, pb.shape(mine)), Lane::download);
}

// logits = alpha y W^T, some rows at a time; the loss's gradient takes their place. The head's
// gradient adds up quantum by quantum, so how many rows makes no difference.
void Seq2SeqPass::head_and_loss(ProgramBuilder& pb) {
  const auto scope = pb.scope("head");
  const int group = head_group(config_);
  const float alpha =
      config_.scaled_head ? 1 / std::sqrt(static_cast<float>(config_.d_model)) : 1.0f;
  const WeightBuffers head = weights_.head(pb);
  const ops::LinearWeight w = {.weight = head.data, .bias = {}, .scale = head.scale};
  // A quantum keeps the CPU busy; a GPU wants more, where memory is no concern.
  const bool wide = pb.backend().device == Device::cuda && job_.policy.chunk_tokens == 0;
  const std::int64_t chunk = wide ? 4 * kTokenQuantum : kTokenQuantum;
  if (weights_train_) begin_gradients(pb, group);
  for (std::size_t i = 0; i < micro_batches_.size(); ++i) {
    MicroBatch& m = micro_batches_[i];
    StackState& t = stack(m, Side::decoder);
    const BlockLayers::Normed n =
        layers_.norm(pb, weights_.final_norm(Side::decoder), t.x, job_.precision.activation);
    m.y = n.u, t.r = n.r;
    const RowsOfSamples r = rows_of(m, Side::decoder, "decoder");
    if (r.dropout > 0) ops::dropout_into(pb, m.y, m.y, r.drop("final"));
    const Buffer losses = pb.temp("losses", {rows(t)}, f32, Role::output);
    Buffer all_logits;  // what the host is given
    if (io_.micro_batches[i].logits) {
      all_logits = pb.temp("all_logits", {rows(t), config_.vocabulary}, f32, Role::output);
    }
    if (trains_) m.dy = pb.temp("dy", pb.shape(m.y), job_.precision.activation);
    for (std::int64_t first = 0; first < rows(t); first += chunk) {
      const std::int64_t count = std::min(chunk, rows(t) - first);
      const auto cut = [&](Buffer b) { return pb.rows(b, first, count); };
      const Buffer logits = pb.temp("logits", {count, config_.vocabulary}, f32);
      ops::linear_into(pb, cut(m.y), w, logits, {.alpha = alpha});
      if (all_logits) ops::copy(pb, logits, cut(all_logits));
      const Buffer dlogits = !trains_ ? Buffer()
                             : job_.precision.activation == f32
                                 ? logits
                                 : pb.temp("dlogits", pb.shape(logits), job_.precision.activation);
      ops::cross_entropy(pb, {.x = logits,
                              .labels = cut(m.labels),
                              .weight = m.label_weight,
                              .losses = cut(losses),
                              .dx = dlogits});
      if (!trains_) continue;
      ops::linear_dx_into(pb, dlogits, w, cut(m.dy), {.alpha = alpha});
      if (weights_train_) {
        ops::linear_dw(pb, cut(m.y), dlogits, gradients(group)[0], {}, alpha);
      }
    }
    if (trains_ && r.dropout > 0) ops::dropout_into(pb, m.dy, m.dy, r.drop("final"));
    take(pb, losses, io_.micro_batches[i].losses);
    if (all_logits) take(pb, all_logits, io_.micro_batches[i].logits);
  }
  // A tied table gets more from the embeddings.
  if (weights_train_ && !config_.tied) end_gradients(pb, group);
}

void Seq2SeqPass::backward_stack(ProgramBuilder& pb, Side side) {
  const Gain norm = weights_.final_norm(side, gradients(kSmallGroup));
  for (MicroBatch& m : micro_batches_) {
    StackState& t = stack(m, side);
    // Every sublayer adds to it: rounded each time it would lose more than all products do.
    t.dx = pb.temp("dx", {rows(t), config_.d_model}, f32);
    ops::fill(pb, t.dx, 0);
    const RowsOfSamples r = rows_of(m, side, name_of(side));
    if (side == Side::encoder && r.dropout > 0) {
      ops::dropout_into(pb, m.dstates, m.dstates, r.drop("final"));
    }
    layers_.norm_backward(pb, norm, t.x, t.r, side == Side::decoder ? m.dy : m.dstates, t.dx);
    if (side == Side::decoder) {
      m.dstates = pb.temp("dstates", pb.shape(m.states), f32, Role::gradient);
      ops::fill(pb, m.dstates, 0);
    }
    if (config_.bias_per_block || !weights_train_) continue;
    t.dbias = pb.temp("dbias", {config_.heads, 2 * t.tokens - 1}, f32, Role::gradient);
    ops::fill(pb, t.dbias, 0);
  }
  for (std::int64_t b = layers_of(config_, side); b-- > 0;) backward_block(pb, side, b);
  if (config_.bias_per_block || !weights_train_) return;
  for (MicroBatch& m : micro_batches_) {
    StackState& t = stack(m, side);
    ops::relative_bias_backward(pb, t.dbias,
                                weights_.table_gradient(side, 0, gradients(kSmallGroup)),
                                {.buckets = config_.relative(side == Side::encoder),
                                 .queries = t.tokens,
                                 .keys = t.tokens});
  }
}

// Brings back what waits in host memory and computes again what was not kept.
void Seq2SeqPass::restore(ProgramBuilder& pb, Side side, std::int64_t block, const BlockInUse& w,
                          const MicroBatch& m, Buffer bias, BlockKept& kept) const {
  if (job_.policy.offload) {
    each_kept(kept, [&](Buffer& b) {
      const Buffer back = pb.temp("brought_back", pb.shape(b), pb.dtype(b), Role::checkpoint);
      ops::copy(pb, b, back, Lane::upload);
      b = back;
    });
  }
  if (keeps_all(side, block)) return;
  const RowsOfSamples rows = rows_of(m, side, block);
  Buffer x = layers_.self_attention(pb, w.self, kept.self.x, bias, side == Side::decoder,
                                    &kept.self, rows);
  if (side == Side::decoder) {
    x = layers_.cross_attention(pb, w.cross, x, m.states, &kept.cross,
                                rows_of(m, side, block, true));
  }
  layers_.feed_forward_again(pb, w.ffn, x, kept.ffn, rows);
}

void Seq2SeqPass::backward_block(ProgramBuilder& pb, Side side, std::int64_t block) {
  const auto scope = pb.scope(fmt::format("{}.{}.backward", name_of(side), block));
  const int group = block_group(config_, side, block);
  if (weights_train_) begin_gradients(pb, group);
  BlockInUse w = use_block(pb, side, block, true);
  const Buffer stack_wide = stack_bias(pb, side, block);
  for (MicroBatch& m : micro_batches_) {
    const bool first = &m == &micro_batches_.front() && !job_.accumulates;
    each_linear(w, [&](AdaptedLinear& l) {
      l.dw = first ? AdaptedLinear::Dw::overwritten : AdaptedLinear::Dw::at_once;
    });
    use_for(w, m);
    StackState& t = stack(m, side);
    ScoreBias bias = {.bias = stack_wide, .dbias = t.dbias};
    const bool own_table = config_.bias_per_block && weights_train_;
    if (own_table) {
      bias.dbias = pb.temp("dbias", pb.shape(bias.bias), f32, Role::gradient);
      ops::fill(pb, bias.dbias, 0);
    }
    BlockKept kept = t.kept[to_size(block)];
    restore(pb, side, block, w, m, bias.bias, kept);
    const RowsOfSamples rows = rows_of(m, side, block);
    layers_.feed_forward_backward(pb, w.ffn, kept.ffn, t.dx, rows);
    if (side == Side::decoder) {
      layers_.cross_attention_backward(pb, w.cross, kept.cross, m.states, m.dstates, t.dx,
                                       rows_of(m, side, block, true));
    }
    layers_.self_attention_backward(pb, w.self, kept.self, bias, side == Side::decoder, t.dx, rows);
    if (own_table) {
      ops::relative_bias_backward(pb, bias.dbias,
                                  weights_.table_gradient(side, block, gradients(kSmallGroup)),
                                  {.buckets = config_.relative(side == Side::encoder),
                                   .queries = t.tokens,
                                   .keys = t.tokens});
    }
  }
  if (weights_train_) end_gradients(pb, group);
}

// dE[id] += dropout(dx) of every token with that id, of both stacks.
void Seq2SeqPass::embed_backward(ProgramBuilder& pb) {
  const auto scope = pb.scope("embed.backward");
  const int group = embedding_group(config_);
  if (!config_.tied) begin_gradients(pb, group);
  for (MicroBatch& m : micro_batches_) {
    for (const Side side : {Side::decoder, Side::encoder}) {
      const StackState& t = stack(m, side);
      const RowsOfSamples r = rows_of(m, side, name_of(side));
      if (r.dropout > 0) ops::dropout_into(pb, t.dx, t.dx, r.drop("embedding"));
      ops::embedding_backward(pb, t.ids, t.dx, gradients(group)[0]);
    }
  }
  end_gradients(pb, group);
}

WeightsInUse::Gradients Seq2SeqPass::gradients(int group) const {
  if (!weights_train_) return {};
  return gradients_[to_size(group)].device;
}

// With gradients that wait in host memory a temporary takes their place while backward adds to it.
// It begins as what was there, or as zero; matrices of blocks are overwritten.
void Seq2SeqPass::begin_gradients(ProgramBuilder& pb, int group) {
  PackedGradients& g = gradients_[to_size(group)];
  g.device = g.persistent;
  g.visiting = {};
  if (!g.matrices) return;
  const bool stays = pb.tier(g.matrices) == Tier::device;
  if (!stays) {
    g.visiting = pb.temp("grad", pb.shape(g.matrices), pb.dtype(g.matrices), Role::gradient);
    for (std::size_t i = 0; i < g.persistent.size(); ++i) {
      const BufferSpec persistent = pb.set().spec(g.persistent[i]);
      if (persistent.root != g.matrices) continue;
      g.device[i] = pb.view(g.visiting, persistent.offset, persistent.dtype, persistent.shape);
    }
  }
  const Buffer here = stays ? g.matrices : g.visiting;
  if (job_.accumulates) {
    if (!stays) ops::copy(pb, g.matrices, here, Lane::upload);
  } else if (group >= embedding_group(config_)) {
    ops::fill(pb, here, 0);
  } else {
    for (const PackedGradients::Gap& gap : g.gaps) {  // the norm reads them too
      const auto count = static_cast<std::int64_t>(gap.bytes / size_of(pb.dtype(here)));
      ops::fill(pb, pb.view(here, gap.offset, pb.dtype(here), {count}), 0);
    }
  }
}

void Seq2SeqPass::end_gradients(ProgramBuilder& pb, int group) {
  const PackedGradients& g = gradients_[to_size(group)];
  if (g.visiting) ops::copy(pb, g.visiting, g.matrices, Lane::download);
}

}  // namespace ballast::t5
