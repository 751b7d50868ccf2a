#include "models/t5/decoder.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/to_size.h"
#include "models/t5/encoder.h"
#include "ops/attention/attention.h"
#include "ops/copy.h"
#include "ops/embedding.h"
#include "ops/relative_bias.h"
#include "plan/bindings.h"

namespace ballast::t5 {
namespace {

// to[step] = row, where `to` [positions, H, D] is one sequence's cache.
void append(ProgramBuilder& pb, Buffer row, Buffer to) {
  pb.emit("append", {.reads = {row, to}, .writes = {to}}, [=](const Bindings& b) {
    ops::copy({.from = b.in(row), .to = b.out(to).rows(b.step().step, 1)}, b.stream());
  });
}

}  // namespace

void Decoder::check_job() const {
  validate(job_.config);
  check(job_.config.decoder_layers > 0, "{} has no decoder", job_.config.name);
  check(job_.beams > 0 && job_.positions > 0 && !job_.sources.empty(),
        "{} sequences of {} tokens from {} sources", job_.beams, job_.positions,
        job_.sources.size());
}

Decoder::Decoder(ProgramSet& set, DecoderJob job, std::vector<WeightGroup> groups)
    : job_(std::move(job)), adapters_(&own_adapters_) {
  check_job();
  check(static_cast<int>(groups.size()) == group_count(job_.config),
        "{} weight groups for a model that has {}", groups.size(), group_count(job_.config));
  {
    ProgramBuilder load(set, "load");
    own_weights_.emplace(load, std::vector<std::vector<WeightGroup>>{std::move(groups)},
                         job_.policy, job_.format);
    weights_ = &*own_weights_;
    if (job_.lora) own_adapters_.declare(load, job_.config, *weights_, *job_.lora, false);
    declare(load);
    weights_->load(load, 0);
  }
  record(set);
}

Decoder::Decoder(ProgramBuilder& load, DecoderJob job, BlockWeights& weights,
                 const Adapters& adapters)
    : job_(std::move(job)), weights_(&weights), adapters_(&adapters) {
  check_job();
  declare(load);
}

void Decoder::record(ProgramSet& set) {
  for (std::size_t i = 0; i < io_.sources.size(); ++i) {
    {
      ProgramBuilder read(set, io_.sources[i].read);
      record_read(read, io_.sources[i]);
    }
    ProgramBuilder next(set, io_.sources[i].next);
    record_next(next, job_.sources[i]);
  }
  ProgramBuilder reorder(set, "reorder");
  record_reorder(reorder);
}

BlockInUse Decoder::block(ProgramBuilder& pb, WeightsInUse& weights, Side side,
                          std::int64_t number) const {
  BlockInUse w = weights.block(pb, side, number);
  adapters_->attach(w, job_.config, side, number, Adapters::Use::infer);
  return w;
}

void Decoder::declare(ProgramBuilder& pb) {
  const Config& c = job_.config;
  const std::int64_t longest = std::ranges::max(job_.sources);
  const Buffer ids = pb.persistent("source", {longest}, DType::i32, Role::input, Tier::host);
  for (std::size_t i = 0; i < job_.sources.size(); ++i) {
    check(job_.sources[i] > 0, "a source of {} tokens", job_.sources[i]);
    io_.sources.push_back({.read = fmt::format("read.{}", i),
                           .next = fmt::format("next.{}", i),
                           .ids = pb.rows(ids, 0, job_.sources[i])});
  }
  if (job_.padded) {
    io_.source_length = pb.persistent("source_length", {1}, DType::i32, Role::input, Tier::host);
  }
  io_.tokens = pb.persistent("tokens", {job_.beams}, DType::i32, Role::input, Tier::host);
  io_.parents = pb.persistent("parents", {job_.beams}, DType::i32, Role::input, Tier::host);
  io_.logits =
      pb.persistent("logits", {job_.beams, c.vocabulary}, DType::f32, Role::output, Tier::host);
  const Shape past = {job_.beams, job_.positions, c.heads, c.d_kv};
  const Shape source = {longest, c.heads, c.d_kv};
  const auto cache = [&](const char* name, std::int64_t block, const Shape& shape) {
    return pb.persistent(fmt::format("{}.{}", name, block), shape, job_.precision.activation,
                         Role::activation);
  };
  for (std::int64_t b = 0; b < c.decoder_layers; ++b) {
    caches_.push_back({.self_k = cache("self_k", b, past),
                       .self_v = cache("self_v", b, past),
                       .cross_k = cache("cross_k", b, source),
                       .cross_v = cache("cross_v", b, source)});
  }
}

// The encoder, and of its states the keys and values of every block of the decoder.
void Decoder::record_read(ProgramBuilder& pb, const DecoderIo::Source& source) {
  const Config& c = job_.config;
  WeightsInUse weights(c, *weights_);
  weights.begin(pb);
  const BlockLayers layers(c, job_.policy, job_.precision);
  const std::int64_t tokens = pb.shape(source.ids)[0];
  const Buffer ids = pb.temp("ids", {tokens}, DType::i32, Role::input);
  ops::copy(pb, source.ids, ids, Lane::upload);
  const Buffer x = pb.temp("x", {tokens, c.d_model}, job_.precision.residual);
  ops::embedding_into(pb, weights.embedding(pb).data, ids, x);
  for (std::int64_t b = 0; b < c.layers; ++b) {
    const auto scope = pb.scope(fmt::format("encoder.{}", b));
    const BlockInUse w = block(pb, weights, Side::encoder, b);
    const Buffer bias = score_bias(pb, c, Side::encoder, weights.table(Side::encoder, b), tokens);
    layers.self_attention(pb, w.self, x, bias, false, nullptr,
                          rows_of_prompt(pb, c, job_.precision, tokens, io_.source_length));
    layers.feed_forward(pb, w.ffn, x, nullptr);
  }
  const Buffer states =
      layers.norm(pb, weights.final_norm(Side::encoder), x, job_.precision.activation).u;
  for (std::int64_t b = 0; b < c.decoder_layers; ++b) {
    const auto scope = pb.scope(fmt::format("decoder.{}", b));
    const BlockInUse w = block(pb, weights, Side::decoder, b);
    const Cache& cache = caches_[to_size(b)];
    w.cross.k.forward(pb, states, layers.flat(pb, pb.rows(cache.cross_k, 0, tokens)));
    w.cross.v.forward(pb, states, layers.flat(pb, pb.rows(cache.cross_v, 0, tokens)));
  }
  weights.end(pb);
}

// Self-attention of one new token of every sequence over its cache, of which this token is the
// last.
Buffer Decoder::attend_to_past(ProgramBuilder& pb, const BlockLayers& layers,
                               const AttentionInUse& w, Buffer x, Buffer table,
                               const Cache& cache) const {
  const Config& c = job_.config;
  const Buffer u = layers.norm(pb, w.norm, x, job_.precision.activation).u;
  const Buffer q = layers.project(pb, w.q, u);  // [beams, H, D]
  const Buffer k = layers.project(pb, w.k, u), v = layers.project(pb, w.v, u);
  const Buffer o = pb.temp("o", pb.shape(q), job_.precision.activation);
  const Buffer bias = ops::relative_bias(
      pb, table,
      {.buckets = c.relative(false), .queries = 1, .keys = job_.positions, .grows = true});
  for (std::int64_t i = 0; i < job_.beams; ++i) {
    const auto own = [&](Buffer all) {
      return pb.reshape(pb.rows(all, i, 1), {job_.positions, c.heads, c.d_kv});
    };
    const Buffer past_k = own(cache.self_k), past_v = own(cache.self_v);
    append(pb, pb.rows(k, i, 1), past_k);
    append(pb, pb.rows(v, i, 1), past_v);
    const Buffer lse = pb.temp("lse", {c.heads, 1}, DType::f32);
    ops::attention_into(pb, pb.rows(q, i, 1), past_k, past_v, pb.rows(o, i, 1), lse,
                        {.scale = 1, .bias = bias, .grows = true});
  }
  return layers.add_product(pb, w.o, layers.flat(pb, o), x, true);
}

void Decoder::record_next(ProgramBuilder& pb, std::int64_t source_tokens) {
  const Config& c = job_.config;
  WeightsInUse weights(c, *weights_);
  weights.begin(pb);
  const BlockLayers layers(c, job_.policy, job_.precision);
  const Buffer ids = pb.temp("ids", {job_.beams}, DType::i32, Role::input);
  ops::copy(pb, io_.tokens, ids, Lane::upload);
  const Buffer x = pb.temp("x", {job_.beams, c.d_model}, job_.precision.residual);
  ops::embedding_into(pb, weights.embedding(pb).data, ids, x);
  for (std::int64_t b = 0; b < c.decoder_layers; ++b) {
    const auto scope = pb.scope(fmt::format("decoder.{}", b));
    const BlockInUse w = block(pb, weights, Side::decoder, b);
    const Cache& cache = caches_[to_size(b)];
    attend_to_past(pb, layers, w.self, x, weights.table(Side::decoder, b), cache);
    // All sequences read the same source: they are queries of one attention.
    const Buffer u = layers.norm(pb, w.cross.norm, x, job_.precision.activation).u;
    const Buffer o = ops::attention(pb, layers.project(pb, w.cross.q, u),
                                    pb.rows(cache.cross_k, 0, source_tokens),
                                    pb.rows(cache.cross_v, 0, source_tokens),
                                    {.scale = 1, .lengths = io_.source_length})
                         .o;
    layers.add_product(pb, w.cross.o, layers.flat(pb, o), x, true);
    layers.feed_forward(pb, w.ffn, x, nullptr);
  }
  const Buffer y =
      layers.norm(pb, weights.final_norm(Side::decoder), x, job_.precision.activation).u;
  const WeightBuffers head = weights.head(pb);
  const Buffer logits = pb.temp("logits", {job_.beams, c.vocabulary}, DType::f32);
  const float alpha = c.scaled_head ? 1 / std::sqrt(static_cast<float>(c.d_model)) : 1.0f;
  ops::linear_into(pb, y, {.weight = head.data, .bias = {}, .scale = head.scale}, logits,
                   {.alpha = alpha});
  ops::copy(pb, logits, io_.logits, Lane::download);
  weights.end(pb);
}

// Through a copy of one block's cache at a time: a parent may have several children.
void Decoder::record_reorder(ProgramBuilder& pb) {
  const Buffer parents = pb.temp("parents", {job_.beams}, DType::i32, Role::input);
  ops::copy(pb, io_.parents, parents, Lane::upload);
  for (const Cache& cache : caches_) {
    for (const Buffer all : {cache.self_k, cache.self_v}) {
      const Shape rows = {job_.beams, pb.shape(all).elements() / job_.beams};
      const Buffer from = pb.reshape(all, rows);
      const Buffer moved = pb.temp("moved", rows, pb.dtype(all));
      ops::embedding_into(pb, from, parents, moved);
      ops::copy(pb, moved, from);
    }
  }
}

}  // namespace ballast::t5
