#include "models/wan_vae/backward.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/to_size.h"
#include "ops/add.h"
#include "ops/copy.h"
#include "ops/fill.h"
#include "ops/linear/linear.h"
#include "ops/rms_norm.h"
#include "ops/silu.h"
#include "ops/softmax.h"
#include "ops/space_to_depth.h"

namespace ballast::wan_vae {
namespace {

using S = TensorSlots;

Buffer gradient(const UnitBuffers* grads, int slot) {
  return grads ? (*grads)[to_size(slot)] : Buffer();
}

}  // namespace

void UnitBackward::conv_dx(Buffer dy, Buffer w, const ops::ConvGeometry& g, Buffer dx,
                           bool accumulate) {
  const Buffer transposed = ops::transpose_conv_weight(pb_, w, pb_.shape(dx)[3], g.taps());
  ops::conv3d_into(
      pb_, dy, {}, {transposed, {}, {}}, dx,
      {.geometry = g.transposed(), .accumulate = accumulate, .frames = pb_.shape(dx)[0]});
}

void UnitBackward::conv_dw(Buffer x, Buffer dy, const UnitBuffers* grads, int slot,
                           const ops::ConvGeometry& g) {
  if (!grads) return;
  ops::conv3d_dw(pb_, x, dy, gradient(grads, slot), gradient(grads, slot + 1),
                 {.geometry = g, .frames = pb_.shape(dy)[0]});
}

UnitBackward::Activated UnitBackward::activate(Buffer x, Buffer gamma) {
  Activated a;
  a.normed = pb_.temp("normed", pb_.shape(x), dtype_);
  forward_.norm(x, gamma, a.normed, &a.factor);
  a.y = ops::silu(pb_, a.normed, dtype_);
  return a;
}

Buffer UnitBackward::activate_backward(const Activated& a, Buffer x, Buffer gamma, Buffer dy,
                                       Buffer dgamma) {
  ops::silu_backward_into(pb_, a.normed, dy, dy);
  const Buffer d = as_rows(pb_, dy);
  ops::rms_norm_backward(pb_, as_rows(pb_, x), a.factor, gamma, d, d, dgamma);
  return dy;
}

Buffer UnitBackward::head(const Unit& u, const UnitBuffers& w, const UnitBuffers* g, Buffer x,
                          Buffer dy) {
  const Activated a = activate(x, w[S::norm]);
  conv_dw(a.y, dy, g, S::conv, kCausal);
  const Buffer dx = forward_.frames("dx", pb_.shape(x), u.in, dtype_);
  conv_dx(dy, w[S::conv], kCausal, dx, false);
  return activate_backward(a, x, w[S::norm], dx, gradient(g, S::norm));
}

Buffer UnitBackward::residual(const Unit& u, const UnitBuffers& w, const UnitBuffers* g, Buffer x,
                              Buffer dy) {
  const Activated a = activate(x, w[S::norm]);
  const Buffer v = forward_.causal({a.y, a.y}, w[S::conv], w[S::bias], u.name, true, u.out, dtype_);
  const Activated b = activate(v, w[S::norm2]);
  conv_dw(b.y, dy, g, S::conv2, kCausal);
  const Buffer dv = forward_.frames("dv", pb_.shape(v), u.out, dtype_);
  conv_dx(dy, w[S::conv2], kCausal, dv, false);
  activate_backward(b, v, w[S::norm2], dv, gradient(g, S::norm2));
  conv_dw(a.y, dv, g, S::conv, kCausal);
  const Buffer dx = forward_.frames("dx", pb_.shape(x), u.in, dtype_);
  conv_dx(dv, w[S::conv], kCausal, dx, false);
  activate_backward(a, x, w[S::norm], dx, gradient(g, S::norm));
  if (w[S::shortcut]) {
    conv_dw(x, dy, g, S::shortcut, kPoint);
    conv_dx(dy, w[S::shortcut], kPoint, dx, true);
  } else {
    ops::add_into(pb_, as_rows(pb_, dy), as_rows(pb_, dx));
  }
  return dx;
}

// With P = softmax(q k^T / sqrt(C)) and dS = softmax'(dout v^T) / sqrt(C), by tiles of queries:
// dq = dS k, dk = dS^T q, dv = P^T dout. dk and dv add up tile by tile in f32.
void UnitBackward::attend(Buffer qkv, Buffer dout, Buffer dqkv) {
  const Shape s = pb_.shape(dout);
  const std::int64_t positions = s[1] * s[2], width = s[3];
  const std::int64_t step = UnitForward::query_rows(positions);
  const float scale = 1.0f / std::sqrt(static_cast<float>(width));
  const Buffer all = as_rows(pb_, qkv), d_all = as_rows(pb_, dqkv), out = as_rows(pb_, dout);
  for (std::int64_t t = 0; t < s[0]; ++t) {
    const auto part = [&](Buffer b, std::int64_t i) {
      return pb_.columns(pb_.rows(b, t * positions, positions), i * width, width);
    };
    const Buffer k = part(all, 1), v = part(all, 2);
    const Buffer dk = pb_.temp("dk", {positions, width}, DType::f32);
    const Buffer dv = pb_.temp("dv", {positions, width}, DType::f32);
    ops::fill(pb_, dk, 0);
    ops::fill(pb_, dv, 0);
    for (std::int64_t first = 0; first < positions; first += step) {
      const std::int64_t rows = std::min(step, positions - first);
      const Buffer q = pb_.rows(part(all, 0), first, rows);
      const Buffer d = pb_.rows(out, t * positions + first, rows);
      const Buffer p = pb_.temp("p", {rows, positions}, DType::f32);
      ops::linear_into(pb_, q, {k, {}, {}}, p);
      ops::softmax_into(pb_, p, p, scale);
      ops::linear_dw(pb_, d, p, dv, {});
      const Buffer ds = pb_.temp("ds", {rows, positions}, DType::f32);
      ops::linear_into(pb_, d, {v, {}, {}}, ds);
      ops::softmax_backward_into(pb_, p, ds, ds, scale);
      ops::linear_dw(pb_, q, ds, dk, {});
      ops::linear_dx_into(pb_, ds, {k, {}, {}}, pb_.rows(part(d_all, 0), first, rows));
    }
    ops::copy(pb_, dk, part(d_all, 1));
    ops::copy(pb_, dv, part(d_all, 2));
  }
}

Buffer UnitBackward::attention(const Unit& u, const UnitBuffers& w, const UnitBuffers* g, Buffer x,
                               Buffer dy) {
  const Buffer n = pb_.temp("normed", pb_.shape(x), dtype_);
  Buffer factor;
  forward_.norm(x, w[S::norm], n, &factor);
  const Buffer qkv = forward_.point(n, w[S::conv], w[S::bias], 3 * u.in, dtype_);
  if (g) {
    const Buffer o = forward_.frames("attended", pb_.shape(x), u.in, dtype_);
    forward_.attend(qkv, o);
    conv_dw(o, dy, g, S::conv2, kPoint);
  }
  const Buffer dout = forward_.frames("dout", pb_.shape(x), u.in, dtype_);
  conv_dx(dy, w[S::conv2], kPoint, dout, false);
  const Buffer dqkv = forward_.frames("dqkv", pb_.shape(x), 3 * u.in, dtype_);
  attend(qkv, dout, dqkv);
  conv_dw(n, dqkv, g, S::conv, kPoint);
  const Buffer dx = forward_.frames("dx", pb_.shape(x), u.in, dtype_);
  conv_dx(dqkv, w[S::conv], kPoint, dx, false);
  const Buffer d = as_rows(pb_, dx);
  ops::rms_norm_backward(pb_, as_rows(pb_, x), factor, w[S::norm], d, d, gradient(g, S::norm));
  ops::add_into(pb_, as_rows(pb_, dy), d);
  return dx;
}

Buffer UnitBackward::down(const Unit& u, const UnitBuffers& w, const UnitBuffers* g, Buffer x,
                          Buffer dy) {
  Shape half = pb_.shape(x);
  half[1] /= 2;
  half[2] /= 2;
  Buffer dhalf = dy;
  if (u.kind == UnitKind::down_3d) {
    dhalf = forward_.frames("dhalf", half, u.out, dtype_);
    const std::int64_t made = pb_.shape(dy)[0] - 1;
    if (made > 0) {
      const Buffer later = pb_.rows(dy, 1, made);
      conv_dx(later, w[S::conv2], kTimeDown, dhalf, false);
      ops::add_into(pb_, as_rows(pb_, pb_.rows(dy, 0, 1)), as_rows(pb_, pb_.rows(dhalf, 0, 1)));
      if (g) {
        const Buffer y = forward_.frames("down", half, u.out, dtype_);
        ops::conv3d_into(pb_, x, {}, {w[S::conv], w[S::bias], {}}, y,
                         {.geometry = kDown, .frames = half[0]});
        conv_dw(y, later, g, S::conv2, kTimeDown);
      }
    } else {
      ops::copy(pb_, dy, dhalf);
    }
  }
  conv_dw(x, dhalf, g, S::conv, kDown);
  const Buffer dx = forward_.frames("dx", pb_.shape(x), u.in, dtype_);
  conv_dx(dhalf, w[S::conv], kDown, dx, false);
  return dx;
}

Buffer UnitBackward::up(const Unit& u, const UnitBuffers& w, const UnitBuffers* g, Buffer x,
                        Buffer dy) {
  const bool faster = u.kind == UnitKind::up_3d;
  Shape s = pb_.shape(x);
  s[0] = pb_.shape(dy)[0];
  const Buffer dlow = forward_.frames("dlow", s, u.in, dtype_);
  {
    const Buffer wide = forward_.frames("dwide", pb_.shape(dy), u.in, dtype_);
    conv_dx(dy, w[S::conv], kUp, wide, false);
    ops::space_to_depth_into(pb_, wide, dlow,
                             {.block = {.space = 2}});  // sums of what was repeated
  }
  if (g) conv_dw(faster ? forward_.time_up(u, w, x, true) : x, dy, g, S::conv, kUp);
  if (!faster) return dlow;

  const std::int64_t later = pb_.shape(x)[0] - 1, width = u.in;
  const Buffer dx = forward_.frames("dx", pb_.shape(x), u.in, dtype_);
  ops::copy(pb_, pb_.rows(dlow, 0, 1), pb_.rows(dx, 0, 1));
  for (std::int64_t half = 0; half < 2 && later > 0; ++half) {
    // Every second frame of the rest: those that this half of the channels became.
    const Shape pairs = {later, 2, s[1], s[2], width}, one = {later, 1, s[1], s[2], width};
    const Buffer dv = pb_.temp("dv", {later, s[1], s[2], width}, dtype_);
    ops::copy(pb_, pb_.slice(pb_.reshape(pb_.rows(dlow, 1, 2 * later), pairs), 1, half, 1),
              pb_.reshape(dv, one));
    conv_dx(dv, pb_.rows(w[S::conv2], half * width, width), kTimeUp, pb_.rows(dx, 1, later),
            half > 0);
    if (!g) continue;
    ops::conv3d_dw(pb_, pb_.rows(x, 1, later), dv,
                   pb_.rows(gradient(g, S::conv2), half * width, width),
                   pb_.rows(gradient(g, S::bias2), half * width, width),
                   {.geometry = kTimeUp, .frames = later});
  }
  return dx;
}

void UnitBackward::shortcut(const Unit& last, Buffer dy, Buffer dx) {
  const Shape a = pb_.shape(dx), b = pb_.shape(dy);
  if (a == b) return ops::add_into(pb_, as_rows(pb_, dy), as_rows(pb_, dx));
  if (last.kind == UnitKind::up_2d || last.kind == UnitKind::up_3d) {
    for (std::int64_t i = 0; i < b[0]; ++i) {
      const std::int64_t from = last.kind == UnitKind::up_3d ? (i + 1) / 2 : i;
      ops::space_to_depth_into(pb_, pb_.rows(dy, i, 1), pb_.rows(dx, from, 1),
                               {.block = {.space = 2}, .accumulate = true});
    }
    return;
  }
  const int time = a[3] == b[3] ? 1 : 2;
  ops::depth_to_space_into(
      pb_, dy, dx,
      {.block = {.time = time, .space = 2, .lead = time - 1}, .scale = 0.25f, .accumulate = true});
}

Buffer UnitBackward::run(const Unit& u, const UnitBuffers& w, const UnitBuffers* grads, Buffer x,
                         Buffer dy, bool input) {
  const auto scope = pb_.scope(u.name);
  switch (u.kind) {
    case UnitKind::conv_in:
    case UnitKind::point: {
      const ops::ConvGeometry& g = u.kind == UnitKind::point ? kPoint : kCausal;
      conv_dw(x, dy, grads, S::conv, g);
      if (!input) return {};
      const Buffer dx = forward_.frames("dx", pb_.shape(x), u.in, pb_.dtype(x));
      conv_dx(dy, w[S::conv], g, dx, false);
      return dx;
    }
    case UnitKind::residual:
      return residual(u, w, grads, x, dy);
    case UnitKind::attention:
      return attention(u, w, grads, x, dy);
    case UnitKind::head:
      return head(u, w, grads, x, dy);
    case UnitKind::down_2d:
    case UnitKind::down_3d:
      return down(u, w, grads, x, dy);
    case UnitKind::up_2d:
    case UnitKind::up_3d:
      return up(u, w, grads, x, dy);
  }
  fail(ErrorCode::internal, "{} has no gradient", u.name);
}

}  // namespace ballast::wan_vae
