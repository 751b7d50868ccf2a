#include "models/student/block.h"

#include <cmath>

#include "ops/attention/attention.h"
#include "ops/copy.h"
#include "ops/gated_residual.h"
#include "ops/layer_norm.h"
#include "ops/residual_norm.h"
#include "ops/silu.h"

namespace ballast::student {
namespace {

constexpr float kEps = 1e-5f;

ops::NormTables affine(const Affine<Buffer>& w) { return {.mul = w.weight, .add = w.bias}; }

// Column i of q, k, v as [L, H, D].
Buffer heads_of(ProgramBuilder& pb, Buffer qkv, std::int64_t i, const Config& c) {
  return pb.split_columns(pb.columns(qkv, i * c.hidden_size, c.hidden_size), c.num_heads);
}

ops::AttentionOptions attention_of(const Job& job) {
  return {.scale = 1.0f / std::sqrt(static_cast<float>(job.config.head_dim())),
          .heads_per_group = job.heads_per_group};
}

}  // namespace

// Everything behind the first norm u = LN1(x1). y invalid: what follows `pre` is not wanted.
BlockSaved Block::inner(ProgramBuilder& pb, const BlockParams<Buffer>& w, Buffer x1, Buffer u,
                        Buffer y) const {
  const Config& c = job_.config;
  const DType act = job_.precision.activation;
  BlockSaved s = {.x = x1, .qkv = {}, .o = {}, .lse = {}, .x2 = {}, .pre = {}};
  s.qkv = ops::linear(pb, u, linear_of(w.qkv), act);  // [L, 3C]
  const ops::AttentionOut attended =
      ops::attention(pb, heads_of(pb, s.qkv, 0, c), heads_of(pb, s.qkv, 1, c),
                     heads_of(pb, s.qkv, 2, c), attention_of(job_));
  s.o = pb.reshape(attended.o, pb.shape(x1));
  s.lse = attended.lse;
  const Buffer branch = ops::linear(pb, s.o, linear_of(w.out), act);  // [L, C]
  s.x2 = pb.temp("x2", pb.shape(x1), job_.precision.residual);
  const Buffer z = ops::residual_norm(pb, x1, branch, {}, s.x2, affine(w.norm2), kEps, act).y;
  s.pre = ops::linear(pb, z, linear_of(w.up), act);  // [L, 4C]
  if (!y) return s;
  const Buffer hidden = ops::silu(pb, s.pre, act);
  const Buffer down = ops::linear(pb, hidden, linear_of(w.down), act);
  ops::gated_residual(pb, s.x2, down, {}, y);
  return s;
}

Buffer Block::forward(ProgramBuilder& pb, const BlockParams<Buffer>& w, Buffer x, Buffer shift,
                      Buffer ones, BlockSaved* saved) const {
  const Buffer x1 = pb.temp("x1", pb.shape(x), job_.precision.residual);
  const Buffer u = ops::residual_norm(pb, x, ones, {.table = shift, .index = {}}, x1,
                                      affine(w.norm1), kEps, job_.precision.activation)
                       .y;
  const Buffer y = pb.temp("x", pb.shape(x), job_.precision.residual);
  BlockSaved all = inner(pb, w, x1, u, y);
  if (!saved) return y;
  *saved = {.x = x1, .qkv = {}, .o = {}, .lse = {}, .x2 = {}, .pre = {}};
  if (job_.activations == Activations::kept) *saved = all;
  for (const Buffer b : {saved->x, saved->qkv, saved->o, saved->lse, saved->x2, saved->pre}) {
    if (b) pb.set_role(b, Role::checkpoint);
  }
  return y;
}

// dpre = silu'(pre) (W2^T dy);  dx2 = dy + LN2'(W1^T dpre);  do = Wo^T dx2;  dqkv by attention;
// dx1 = dx2 + LN1'(Wqkv^T dqkv);  dshift += column sums of dx1.
void Block::backward(ProgramBuilder& pb, const BlockParams<Buffer>& w,
                     const BlockParams<Buffer>& grads, BlockSaved s, Buffer dx, Buffer shift,
                     Buffer ones, Buffer dshift) const {
  const Config& c = job_.config;
  const DType act = job_.precision.activation;
  const ops::LayerNormOut first = ops::layer_norm(pb, s.x, affine(w.norm1), kEps, act);
  if (!s.qkv) s = inner(pb, w, s.x, first.y, {});
  {
    const Buffer dy = ops::cast(pb, dx, act);
    const Buffer hidden = ops::silu(pb, s.pre, act);  // cheaper to redo than to keep
    ops::linear_dw(pb, hidden, dy, grads.down.weight, grads.down.bias);
    const Buffer dpre = ops::linear_dx(pb, dy, linear_of(w.down), act);  // [L, 4C]
    ops::silu_backward_into(pb, s.pre, dpre, dpre);
    const ops::LayerNormOut second = ops::layer_norm(pb, s.x2, affine(w.norm2), kEps, act);
    ops::linear_dw(pb, second.y, dpre, grads.up.weight, grads.up.bias);
    const Buffer dz = ops::linear_dx(pb, dpre, linear_of(w.up), act);  // [L, C]
    ops::layer_norm_backward(pb, s.x2, second.stats, affine(w.norm2), dz, dx, true,
                             {.dmul = grads.norm2.weight, .dadd = grads.norm2.bias});
  }
  const Buffer dbranch = ops::cast(pb, dx, act);
  ops::linear_dw(pb, s.o, dbranch, grads.out.weight, grads.out.bias);
  const Buffer dout = ops::linear_dx(pb, dbranch, linear_of(w.out), act);  // [L, C]
  const Buffer dqkv = pb.temp("dqkv", pb.shape(s.qkv), act);
  ops::attention_backward(pb,
                          {.q = heads_of(pb, s.qkv, 0, c),
                           .k = heads_of(pb, s.qkv, 1, c),
                           .v = heads_of(pb, s.qkv, 2, c),
                           .o = pb.split_columns(s.o, c.num_heads),
                           .lse = s.lse},
                          pb.split_columns(dout, c.num_heads), heads_of(pb, dqkv, 0, c),
                          heads_of(pb, dqkv, 1, c), heads_of(pb, dqkv, 2, c), attention_of(job_));
  ops::linear_dw(pb, first.y, dqkv, grads.qkv.weight, grads.qkv.bias);
  const Buffer du = ops::linear_dx(pb, dqkv, linear_of(w.qkv), act);  // [L, C]
  ops::layer_norm_backward(pb, s.x, first.stats, affine(w.norm1), du, dx, true,
                           {.dmul = grads.norm1.weight, .dadd = grads.norm1.bias});
  // Of the two gradients the one of the ones is not wanted.
  const Buffer unused = pb.temp("dones", pb.shape(dx), act);
  ops::gated_residual_backward(pb, dx, {.table = shift, .index = {}}, unused, ones, dshift);
}

}  // namespace ballast::student
