#pragma once

#include <string>

#include "core/shape.h"
#include "models/student/config.h"
#include "models/wan/params.h"

namespace ballast::student {

// The student's parameters under the names of its files. T is Shape when described and Buffer when
// recorded. `each` is the only list: loading, saving, counting and optimizing all walk it.

template <class T>
using Affine = wan::LinearParams<T>;

template <class T>
struct BlockParams {
  Affine<T> norm1, qkv, out, norm2, up, down;

  template <class Self, class Visit>
  static void each(Self& p, const std::string& prefix, Visit&& visit) {
    Affine<T>::each(p.norm1, prefix + "norm1.", visit);
    visit(prefix + "attn.in_proj_weight", p.qkv.weight);
    visit(prefix + "attn.in_proj_bias", p.qkv.bias);
    Affine<T>::each(p.out, prefix + "attn.out_proj.", visit);
    Affine<T>::each(p.norm2, prefix + "norm2.", visit);
    Affine<T>::each(p.up, prefix + "mlp.0.", visit);
    Affine<T>::each(p.down, prefix + "mlp.2.", visit);
  }
};

// What stands before the first block and behind the last. `projection` is a file of its own
// (output_proj.safetensors) and exists where Config::projects().
template <class T>
struct EndParams {
  Affine<T> text, time0, time2, conv_in, conv_out, projection;

  template <class Self, class Visit>
  static void each(Self& p, bool projects, Visit&& visit) {
    Affine<T>::each(p.text, "text_proj.", visit);
    Affine<T>::each(p.time0, "time_embed.0.", visit);
    Affine<T>::each(p.time2, "time_embed.2.", visit);
    Affine<T>::each(p.conv_in, "conv_in.", visit);
    Affine<T>::each(p.conv_out, "conv_out.", visit);
    if (projects) Affine<T>::each(p.projection, "output_proj.", visit);
  }
};

inline EndParams<Shape> end_shapes(const Config& c) {
  const std::int64_t h = c.hidden_size, n = c.num_channels;
  return {.text = {{h, c.text_dim}, {h}},
          .time0 = {{4 * h, h}, {4 * h}},
          .time2 = {{h, 4 * h}, {h}},
          .conv_in = {{h, n, 3, 3}, {h}},
          .conv_out = {{n, h, 3, 3}, {n}},
          .projection = {{c.teacher_channels, n, 1, 1}, {c.teacher_channels}}};
}

inline BlockParams<Shape> block_shapes(const Config& c) {
  const std::int64_t h = c.hidden_size;
  return {.norm1 = {{h}, {h}},
          .qkv = {{3 * h, h}, {3 * h}},
          .out = {{h, h}, {h}},
          .norm2 = {{h}, {h}},
          .up = {{4 * h, h}, {4 * h}},
          .down = {{h, 4 * h}, {h}}};
}

// A group is what is used together: 0 the ends, then block by block.
inline int group_count(const Config& c) { return 1 + static_cast<int>(c.depth); }

// visit(group, name, shape) for every parameter, the output projection's too.
template <class Visit>
void each_parameter(const Config& c, Visit&& visit) {
  const EndParams<Shape> ends = end_shapes(c);
  EndParams<Shape>::each(ends, c.projects(), [&](const std::string& name, const Shape& shape) {
    visit(0, name, shape);
  });
  const BlockParams<Shape> block = block_shapes(c);
  for (std::int64_t b = 0; b < c.depth; ++b) {
    BlockParams<Shape>::each(block, "blocks." + std::to_string(b) + ".",
                             [&](const std::string& name, const Shape& shape) {
                               visit(1 + static_cast<int>(b), name, shape);
                             });
  }
}

// Whether a tensor belongs to output_proj.safetensors.
inline bool in_projection_file(const std::string& name) { return name.starts_with("output_proj."); }

// Of the network; the output projection, a helper of the loss, is not counted.
inline std::int64_t parameter_count(const Config& c) {
  std::int64_t n = 0;
  each_parameter(c, [&](int, const std::string& name, const Shape& shape) {
    if (!in_projection_file(name)) n += shape.elements();
  });
  return n;
}

}  // namespace ballast::student
