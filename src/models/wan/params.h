#pragma once

#include <string>

#include "core/shape.h"
#include "models/wan/config.h"

namespace ballast::wan {

// The parameters of the transformer under their official names. T is Shape when described and
// Buffer when recorded. `each` is the only list: loading, saving, counting and optimizing all walk
// it.

template <class T>
struct LinearParams {
  T weight, bias;

  template <class Self, class Visit>
  static void each(Self& p, const std::string& prefix, Visit&& visit) {
    visit(prefix + "weight", p.weight);
    visit(prefix + "bias", p.bias);
  }
};

template <class T>
struct AttentionParams {
  LinearParams<T> q, k, v, o;
  T norm_q, norm_k;

  template <class Self, class Visit>
  static void each(Self& p, const std::string& prefix, Visit&& visit) {
    LinearParams<T>::each(p.q, prefix + "q.", visit);
    LinearParams<T>::each(p.k, prefix + "k.", visit);
    LinearParams<T>::each(p.v, prefix + "v.", visit);
    LinearParams<T>::each(p.o, prefix + "o.", visit);
    visit(prefix + "norm_q.weight", p.norm_q);
    visit(prefix + "norm_k.weight", p.norm_k);
  }
};

template <class T>
struct BlockParams {
  T modulation;  // [1, 6, C]
  AttentionParams<T> self_attn, cross_attn;
  LinearParams<T> norm3, ffn_up, ffn_down;

  template <class Self, class Visit>
  static void each(Self& p, const std::string& prefix, Visit&& visit) {
    visit(prefix + "modulation", p.modulation);
    AttentionParams<T>::each(p.self_attn, prefix + "self_attn.", visit);
    LinearParams<T>::each(p.norm3, prefix + "norm3.", visit);
    AttentionParams<T>::each(p.cross_attn, prefix + "cross_attn.", visit);
    LinearParams<T>::each(p.ffn_up, prefix + "ffn.0.", visit);
    LinearParams<T>::each(p.ffn_down, prefix + "ffn.2.", visit);
  }
};

template <class T>
struct EmbeddingParams {
  LinearParams<T> patch, text0, text2, time0, time2, projection;

  template <class Self, class Visit>
  static void each(Self& p, const std::string& prefix, Visit&& visit) {
    LinearParams<T>::each(p.patch, prefix + "patch_embedding.", visit);
    LinearParams<T>::each(p.text0, prefix + "text_embedding.0.", visit);
    LinearParams<T>::each(p.text2, prefix + "text_embedding.2.", visit);
    LinearParams<T>::each(p.time0, prefix + "time_embedding.0.", visit);
    LinearParams<T>::each(p.time2, prefix + "time_embedding.2.", visit);
    LinearParams<T>::each(p.projection, prefix + "time_projection.1.", visit);
  }
};

template <class T>
struct HeadParams {
  LinearParams<T> head;
  T modulation;  // [1, 2, C]

  template <class Self, class Visit>
  static void each(Self& p, const std::string& prefix, Visit&& visit) {
    LinearParams<T>::each(p.head, prefix + "head.head.", visit);
    visit(prefix + "head.modulation", p.modulation);
  }
};

inline BlockParams<Shape> block_shapes(const Config& c) {
  const LinearParams<Shape> square = {{c.dim, c.dim}, {c.dim}};
  const AttentionParams<Shape> attention = {square, square, square, square, {c.dim}, {c.dim}};
  return {.modulation = {1, 6, c.dim},
          .self_attn = attention,
          .cross_attn = attention,
          .norm3 = {{c.dim}, {c.dim}},
          .ffn_up = {{c.ffn_dim, c.dim}, {c.ffn_dim}},
          .ffn_down = {{c.dim, c.ffn_dim}, {c.dim}}};
}

inline EmbeddingParams<Shape> embedding_shapes(const Config& c) {
  return {.patch = {{c.dim, c.in_dim, 1, 2, 2}, {c.dim}},
          .text0 = {{c.dim, c.text_dim}, {c.dim}},
          .text2 = {{c.dim, c.dim}, {c.dim}},
          .time0 = {{c.dim, c.freq_dim}, {c.dim}},
          .time2 = {{c.dim, c.dim}, {c.dim}},
          .projection = {{6 * c.dim, c.dim}, {6 * c.dim}}};
}

inline HeadParams<Shape> head_shapes(const Config& c) {
  return {.head = {{4 * c.out_dim, c.dim}, {4 * c.out_dim}}, .modulation = {1, 2, c.dim}};
}

// Groups of parameters that are visited together: the embeddings, every block, the head.
inline int group_count(const Config& c) { return static_cast<int>(c.layers) + 2; }
inline int block_group(std::int64_t block) { return static_cast<int>(block) + 1; }
inline int head_group(const Config& c) { return static_cast<int>(c.layers) + 1; }

// visit(group, name, shape) for every parameter of the model.
template <class Visit>
void each_parameter(const Config& c, Visit&& visit) {
  const auto embeddings = embedding_shapes(c);
  const auto in_group = [&](int group) {
    return
        [&visit, group](const std::string& name, const Shape& shape) { visit(group, name, shape); };
  };
  EmbeddingParams<Shape>::each(embeddings, "", in_group(0));
  const auto block = block_shapes(c);
  for (std::int64_t i = 0; i < c.layers; ++i) {
    BlockParams<Shape>::each(block, "blocks." + std::to_string(i) + ".", in_group(block_group(i)));
  }
  const auto head = head_shapes(c);
  HeadParams<Shape>::each(head, "", in_group(head_group(c)));
}

}  // namespace ballast::wan
