#include "nn/linear_group.h"

#include "core/error.h"
#include "ops/copy.h"

namespace ballast {
namespace {

// The matrices as one with all their rows, or an invalid Buffer where they are apart.
Buffer side_by_side(ProgramBuilder& pb, const std::vector<Buffer>& parts) {
  if (parts.empty() || !parts[0]) return {};
  const BufferSpec first = pb.set().spec(parts[0]);
  std::uint64_t end = first.offset;
  std::int64_t rows = 0;
  for (const Buffer b : parts) {
    if (!b) return {};
    const BufferSpec& s = pb.set().spec(b);
    if (s.root != first.root || s.offset != end || s.dtype != first.dtype ||
        s.shape[1] != first.shape[1] || s.strides != row_major(s.shape)) {
      return {};
    }
    end += s.bytes;
    rows += s.shape[0];
  }
  return pb.view(parts[0], 0, first.dtype, {rows, first.shape[1]});
}

}  // namespace

LinearGroup::LinearGroup(ProgramBuilder& pb, std::vector<AdaptedLinear> layers)
    : layers_(std::move(layers)) {
  std::vector<Buffer> a, da;
  for (const AdaptedLinear& l : layers_) {
    if (l.adapter.dropout.any()) return;  // then no two read the same
    a.push_back(l.adapter.a);
    da.push_back(l.adapter_grads.da);
  }
  stacked_.a = side_by_side(pb, a);
  stacked_da_ = side_by_side(pb, da);
}

Buffer LinearGroup::part(ProgramBuilder& pb, Buffer u, std::size_t layer) const {
  const std::int64_t count = layers_[layer].rank(pb);
  if (!u || count == 0) return {};
  std::int64_t first = 0;
  for (std::size_t i = 0; i < layer; ++i) first += layers_[i].u_columns(pb);
  return pb.columns(u, first, count);
}

void LinearGroup::forward(ProgramBuilder& pb, Buffer x, std::span<const Buffer> y, Buffer u) const {
  check(y.size() == layers_.size(), "{} layers have {} outputs", layers_.size(), y.size());
  if (appended()) {
    const AppendedAdapter& first = layers_[0].appended;
    ops::linear_into(pb, x, {.weight = first.down(pb)}, first.u(pb, x));
    if (u) ops::copy(pb, first.u(pb, x), u);
    for (std::size_t i = 0; i < y.size(); ++i) layers_[i].multiply(pb, x, y[i], {});
    return;
  }
  const ops::QuantizedRows shared = layers_[0].quantized(pb, x);
  if (!stacked_.a) {
    for (std::size_t i = 0; i < y.size(); ++i) {
      layers_[i].forward(pb, x, y[i], part(pb, u, i), shared);
    }
    return;
  }
  u = ops::lora_down(pb, x, stacked_, u).u;  // [R, n r]
  for (std::size_t i = 0; i < y.size(); ++i) {
    ops::lora_up(pb, part(pb, u, i), layers_[i].adapter, y[i]);
    layers_[i].multiply(pb, x, y[i], {.accumulate = true}, shared);
  }
}

void LinearGroup::forward_again(ProgramBuilder& pb, Buffer x, std::size_t layer, Buffer y,
                                Buffer u) const {
  const AdaptedLinear& l = layers_[layer];
  if (appended()) {
    ops::copy(pb, u, l.appended.u(pb, x));
    return l.multiply(pb, x, y, {});
  }
  const bool adapted = static_cast<bool>(l.adapter.a);
  if (adapted) ops::lora_up(pb, part(pb, u, layer), l.adapter, y);
  l.multiply(pb, x, y, {.accumulate = adapted});
}

void LinearGroup::backward(ProgramBuilder& pb, Buffer x, std::span<const Buffer> dy, Buffer dx,
                           bool accumulate, Buffer u) const {
  check(dy.size() == layers_.size(), "{} layers have {} gradients", layers_.size(), dy.size());
  if (appended()) return backward_appended(pb, x, dy, dx, accumulate, u);
  if (!stacked_.a || !stacked_da_) {
    for (std::size_t i = 0; i < dy.size(); ++i) {
      layers_[i].backward(pb, x, dy[i], dx, accumulate || i > 0, part(pb, u, i));
    }
    return;
  }
  if (!u) u = ops::lora_down(pb, x, stacked_).u;
  const Buffer du = pb.temp("du", pb.shape(u), pb.dtype(dy[0]));  // [R, n r]
  for (std::size_t i = 0; i < dy.size(); ++i) {
    const AdaptedLinear& l = layers_[i];
    ops::lora_up_backward(pb, part(pb, u, i), dy[i], l.adapter, l.adapter_grads.db,
                          part(pb, du, i));
  }
  ops::lora_down_backward(pb, x, du, stacked_, stacked_da_, dx, accumulate);
  for (std::size_t i = 0; i < dy.size(); ++i) {
    const AdaptedLinear& l = layers_[i];
    if (dx) ops::linear_dx_into(pb, dy[i], l.weight, dx, {.accumulate = true});
    if (l.dweight) ops::linear_dw(pb, x, dy[i], l.dweight, l.dbias);
  }
}

void LinearGroup::backward_appended(ProgramBuilder& pb, Buffer x, std::span<const Buffer> dy,
                                    Buffer dx, bool accumulate, Buffer u) const {
  const Buffer down = layers_[0].appended.down(pb);  // [n r, K]
  const std::int64_t columns = pb.shape(down)[0];
  if (!u) {
    u = pb.temp("u", {pb.shape(x)[0], columns}, pb.dtype(x));
    ops::linear_into(pb, x, {.weight = down}, u);
  }
  const Buffer du = pb.temp("du", {pb.shape(x)[0], columns}, pb.dtype(dy[0]));  // [R, n r]
  for (std::size_t i = 0; i < dy.size(); ++i) {
    const AdaptedLinear& l = layers_[i];
    ops::linear_dx_into(pb, dy[i], {.weight = l.appended.up(pb)},
                        pb.columns(du, l.appended.first, l.appended.own));
    ops::linear_dw(pb, part(pb, u, i), dy[i], l.adapter_grads.db, {}, l.adapter.scale);
  }
  // Without zeros between them.
  if (stacked_da_ && pb.shape(stacked_da_)[0] == columns) {
    ops::linear_dw(pb, x, du, stacked_da_, {});
  } else {
    for (std::size_t i = 0; i < dy.size(); ++i) {
      ops::linear_dw(pb, x, part(pb, du, i), layers_[i].adapter_grads.da, {});
    }
  }
  if (!dx) return;
  ops::linear_dx_into(pb, du, {.weight = down}, dx, {.accumulate = accumulate});
  for (std::size_t i = 0; i < dy.size(); ++i) {
    ops::linear_dx_into(pb, dy[i], layers_[i].weight, dx, {.accumulate = true});
  }
}

}  // namespace ballast
