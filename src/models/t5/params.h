#pragma once

#include <string>

#include "core/shape.h"
#include "models/t5/config.h"

namespace ballast::t5 {

// The parameters under their names in transformers' checkpoints. T is Shape when described and
// Buffer or WeightBuffers when recorded. The lists here are the only ones: loading, saving,
// counting and optimizing all walk them.

enum class Side : std::uint8_t { encoder, decoder };
constexpr const char* name_of(Side s) { return s == Side::encoder ? "encoder" : "decoder"; }

template <class T>
struct AttentionParams {
  T norm, q, k, v, o;

  template <class Self, class Visit>
  static void each(Self& p, const std::string& layer, const char* module, Visit&& visit) {
    visit(layer + "layer_norm.weight", p.norm);
    visit(layer + module + ".q.weight", p.q);
    visit(layer + module + ".k.weight", p.k);
    visit(layer + module + ".v.weight", p.v);
    visit(layer + module + ".o.weight", p.o);
  }
};

template <class T>
struct BlockParams {
  AttentionParams<T> self, cross;  // cross: of the decoder
  T norm, wi_0, wi_1, wo;          // wi_1: of gated layers

  template <class Self, class Visit>
  static void each(Self& p, Side side, bool gated, const std::string& prefix, Visit&& visit) {
    AttentionParams<T>::each(p.self, prefix + "layer.0.", "SelfAttention", visit);
    const bool decoder = side == Side::decoder;
    if (decoder) AttentionParams<T>::each(p.cross, prefix + "layer.1.", "EncDecAttention", visit);
    const std::string layer = prefix + (decoder ? "layer.2." : "layer.1.");
    visit(layer + "layer_norm.weight", p.norm);
    visit(layer + (gated ? "DenseReluDense.wi_0.weight" : "DenseReluDense.wi.weight"), p.wi_0);
    if (gated) visit(layer + "DenseReluDense.wi_1.weight", p.wi_1);
    visit(layer + "DenseReluDense.wo.weight", p.wo);
  }
};

inline BlockParams<Shape> block_shapes(const Config& c) {
  const Shape in = {c.inner(), c.d_model}, out = {c.d_model, c.inner()};
  const AttentionParams<Shape> attention = {{c.d_model}, in, in, in, out};
  return {.self = attention,
          .cross = attention,
          .norm = {c.d_model},
          .wi_0 = {c.d_ff, c.d_model},
          .wi_1 = {c.d_ff, c.d_model},
          .wo = {c.d_model, c.d_ff}};
}

inline std::int64_t layers_of(const Config& c, Side side) {
  return side == Side::encoder ? c.layers : c.decoder_layers;
}

// Groups of parameters that are visited together: final norms and bias tables, every block of the
// encoder, every block of the decoder; with a decoder also the embedding table and, if it is
// another, the head. An encoder alone takes rows of its embedding table from the file.
inline constexpr int kSmallGroup = 0;
inline int block_group(const Config& c, Side side, std::int64_t block) {
  return static_cast<int>((side == Side::encoder ? 0 : c.layers) + block) + 1;
}
inline int embedding_group(const Config& c) {
  return block_group(c, Side::decoder, c.decoder_layers);
}
inline int head_group(const Config& c) { return embedding_group(c) + (c.tied ? 0 : 1); }
inline int group_count(const Config& c) {
  return c.decoder_layers == 0 ? embedding_group(c) : head_group(c) + 1;
}

inline constexpr const char* kEmbeddingName = "shared.weight";
inline constexpr const char* kHeadName = "lm_head.weight";

inline std::string block_name(Side side, std::int64_t block) {
  return std::string(name_of(side)) + ".block." + std::to_string(block) + ".";
}
inline std::string table_name(Side side, std::int64_t block) {
  return block_name(side, block) + "layer.0.SelfAttention.relative_attention_bias.weight";
}
inline std::int64_t table_count(const Config& c, Side side) {
  return c.bias_per_block ? layers_of(c, side) : 1;
}

// visit(name, shape) in the order of the first group: of each stack the final norm, then its
// tables.
template <class Visit>
void each_small(const Config& c, Visit&& visit) {
  for (const Side side : {Side::encoder, Side::decoder}) {
    if (layers_of(c, side) == 0) continue;
    visit(std::string(name_of(side)) + ".final_layer_norm.weight", Shape{c.d_model});
    for (std::int64_t b = 0; b < table_count(c, side); ++b) {
      visit(table_name(side, b), Shape{c.buckets, c.heads});
    }
  }
}

// visit(group, name, shape) for every parameter of the model that weights hold.
template <class Visit>
void each_parameter(const Config& c, Visit&& visit) {
  each_small(c,
             [&](const std::string& name, const Shape& shape) { visit(kSmallGroup, name, shape); });
  const auto block = block_shapes(c);
  for (const Side side : {Side::encoder, Side::decoder}) {
    for (std::int64_t i = 0; i < layers_of(c, side); ++i) {
      BlockParams<Shape>::each(block, side, c.gated, block_name(side, i),
                               [&](const std::string& name, const Shape& shape) {
                                 visit(block_group(c, side, i), name, shape);
                               });
    }
  }
  if (c.decoder_layers == 0) return;
  visit(embedding_group(c), std::string(kEmbeddingName), Shape{c.vocabulary, c.d_model});
  if (!c.tied) visit(head_group(c), std::string(kHeadName), Shape{c.vocabulary, c.d_model});
}

}  // namespace ballast::t5
