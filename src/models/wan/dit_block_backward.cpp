// The gradients of a block. What they read and forward did not keep: dit_block_recompute.cpp.
#include "models/wan/dit_block.h"
#include "ops/attention/attention.h"
#include "ops/gated_residual.h"
#include "ops/gelu.h"
#include "ops/layer_norm.h"
#include "ops/rms_norm.h"

namespace ballast::wan {

void DitBlock::backward(ProgramBuilder& pb, BlockWeightsInUse w, const BlockSample& s,
                        const BlockSaved& saved, Buffer dx, bool wants_dx,
                        const std::function<void()>& near_end) const {
  Qk q, k, cq, ck;
  BlockSaved all = restore(pb, w, s, saved, q, k, cq, ck);
  const Buffer dcross_o = full(pb, "dcross_o", s, precision_.activation);
  backward_feed_forward(pb, w, s, all, dx, dcross_o);
  const Buffer dself_o = full(pb, "dself_o", s, precision_.activation);
  if (w.renew) w.renew(pb, w);
  backward_cross(pb, w, s, all, cq, ck, dx, dcross_o, dself_o);
  if (w.renew) w.renew(pb, w);
  if (policy_.split_backward) restore_self(pb, w, s, all, q, k);
  backward_self(pb, w, s, all, q, k, dx, dself_o, wants_dx, near_end);
}

// dy3 = dx gate2;  dpre = gelu'(pre) (dy3 W2);  dx += LN2'(dpre W0);  dcross_o = dx Wo
//
// Forward's GELU is of a sum that was not rounded, kept is what was. So whatever forward made of it
// is kept or made again by the same product (y3), and what gradients alone read (the input of W2)
// is always the GELU of pre, which then takes its place.
void DitBlock::backward_feed_forward(ProgramBuilder& pb, const BlockWeightsInUse& w,
                                     const BlockSample& s, const BlockSaved& saved, Buffer dx,
                                     Buffer dcross_o) const {
  const DType act = precision_.activation;
  if (w.gradients_come) w.gradients_come(pb, GradientPart::feed_forward);
  for (const TokenChunk& c : token_chunks(policy_, s.tokens)) {
    const auto rows = [&](Buffer b) { return b ? pb.rows(b, c.first, c.rows) : Buffer(); };
    const auto temp = [&](const char* name, std::int64_t width, std::int64_t room = 0) {
      return AppendedAdapter::temp(pb, name, {c.rows, width}, act, room);
    };
    const Buffer index = rows(s.timestep_row), dx_rows = rows(dx);
    Buffer x2 = rows(saved.x2), u_cross_o = rows(saved.u.cross_o), u_up = rows(saved.u.up);
    const ops::NormTables tables = {.mul = modulation_row(pb, w.modulation, scale2),
                                    .add = modulation_row(pb, w.modulation, shift2),
                                    .index = index,
                                    .one_plus = true};
    ops::LayerNormOut z;
    if (x2) {
      z = ops::layer_norm(pb, x2, tables, config_.eps, act);
    } else {
      u_cross_o = adapter_input_beside(pb, c.rows, w.cross_o);
      x2 = pb.temp("x2", {c.rows, config_.dim}, precision_.residual);
      const Buffer y2 =
          w.cross_o.at(c.first, s.index).forward(pb, rows(saved.cross_attention), act, u_cross_o);
      z = residual_normed(pb, rows(saved.x1), y2, {}, x2, tables, w.up);
    }
    const AdaptedLinear up = w.up.at(c.first, s.index), down = w.down.at(c.first, s.index);
    Buffer pre = rows(saved.pre);  // [R, F]
    Buffer y3;                     // only where the gate's gradient reads it
    if (gates_train(w)) y3 = rows(saved.ffn_out);
    if (!pre) {
      u_up = adapter_input_beside(pb, c.rows, w.up);
      pre = temp("pre", config_.ffn_dim);
      if (gates_train(w)) {
        const Buffer activated = temp("act", config_.ffn_dim, w.down.appended.columns);
        up.forward_gelu(pb, z.y, activated, pre, u_up);
        y3 = down.forward(pb, activated, act);
      } else {
        up.forward(pb, z.y, pre, u_up);
      }
      u_up = beside(pb, w.up, z.y, u_up);
    }
    const Buffer dy3 = temp("dy3", config_.dim, w.down.appended.own);
    ops::gated_residual_backward(pb, dx_rows,
                                 {.table = modulation_row(pb, w.modulation, gate2), .index = index},
                                 dy3, y3, modulation_row(pb, w.dmodulation, gate2));
    const Buffer dpre = temp("dpre", config_.ffn_dim, w.up.appended.own);  // [R, F]
    const Buffer du = down.backward_dx(pb, dy3, dpre, false);
    ops::gelu_backward_into(pb, pre, dpre, dpre, down.trains() ? pre : Buffer());
    if (down.trains()) down.backward_dw(pb, pre, dy3, du);
    const Buffer dz = temp("dz2", config_.dim);
    up.backward(pb, z.y, dpre, dz, false, u_up);
    ops::layer_norm_backward(pb, x2, z.stats, tables, dz, dx_rows, true,
                             {.dmul = modulation_row(pb, w.dmodulation, scale2),
                              .dadd = modulation_row(pb, w.dmodulation, shift2)});

    Buffer dy2 = dx_rows;
    if (precision_.residual != act) {
      dy2 = temp("dy2", config_.dim, w.cross_o.appended.own);
      ops::gated_residual_backward(pb, dx_rows, {}, dy2, {}, {});
    }
    const Buffer cross_o = rows(saved.cross_attention);
    w.cross_o.at(c.first, s.index)
        .backward(pb, cross_o, dy2, rows(dcross_o), false,
                  beside(pb, w.cross_o, cross_o, u_cross_o));
  }
}

// Cross-attention, then dx += LN3'(dcq Wq) and dself_o = (dx gate1) Wo
void DitBlock::backward_cross(ProgramBuilder& pb, const BlockWeightsInUse& w, const BlockSample& s,
                              const BlockSaved& saved, const Qk& cq, const Qk& ck, Buffer dx,
                              Buffer dcross_o, Buffer dself_o) const {
  const DType act = precision_.activation;
  const Buffer dcq = full(pb, "dcross_q", s, act, w.cross_q.appended.own);
  const Buffer dck = pb.temp("dcross_k", pb.shape(s.context), act);
  const Buffer dcv = pb.temp("dcross_v", pb.shape(s.context), act);
  ops::attention_backward(pb,
                          {.q = heads(pb, cq.y),
                           .k = heads(pb, ck.y),
                           .v = heads(pb, saved.cross_v),
                           .o = heads(pb, saved.cross_attention),
                           .lse = saved.cross_lse},
                          heads(pb, dcross_o), heads(pb, dcq), heads(pb, dck), heads(pb, dcv),
                          attention_options());
  if (w.gradients_come) w.gradients_come(pb, GradientPart::cross_attention);
  for (const TokenChunk& c : token_chunks(policy_, s.tokens)) {
    const auto rows = [&](Buffer b) { return b ? pb.rows(b, c.first, c.rows) : Buffer(); };
    const Buffer dx_rows = rows(dx);
    ops::rms_norm_backward(pb, rows(saved.cross_q), rows(cq.r), w.cross_norm_q.weight, rows(dcq),
                           rows(dcq), w.cross_norm_q.dweight);
    const ops::NormTables tables = norm3_tables(pb, w);
    const ops::LayerNormOut z = ops::layer_norm(pb, rows(saved.x1), tables, config_.eps, act);
    const Buffer dz = pb.temp("dz3", {c.rows, config_.dim}, act);
    w.cross_q.at(c.first, s.index).backward(pb, z.y, rows(dcq), dz, false, rows(saved.u.cross_q));
    const auto as_table = [&](Buffer b) { return b ? pb.reshape(b, {1, config_.dim}) : Buffer(); };
    ops::layer_norm_backward(
        pb, rows(saved.x1), z.stats, tables, dz, dx_rows, true,
        {.dmul = as_table(w.norm3.dweight), .dadd = as_table(w.norm3_bias.dweight)});

    Buffer y1;
    if (gates_train(w)) {
      y1 = saved.self_out ? rows(saved.self_out)
                          : w.self_o.at(c.first, s.index).forward(pb, rows(saved.attention), act);
    }
    const Buffer dy1 =
        AppendedAdapter::temp(pb, "dy1", {c.rows, config_.dim}, act, w.self_o.appended.own);
    ops::gated_residual_backward(
        pb, dx_rows,
        {.table = modulation_row(pb, w.modulation, gate1), .index = rows(s.timestep_row)}, dy1, y1,
        modulation_row(pb, w.dmodulation, gate1));
    const Buffer o = rows(saved.attention);
    w.self_o.at(c.first, s.index)
        .backward(pb, o, dy1, rows(dself_o), false, beside(pb, w.self_o, o, rows(saved.u.self_o)));
  }
  if (w.cross_k.trains() || s.dcontext) {
    ops::rms_norm_backward(pb, saved.cross_k, ck.r, w.cross_norm_k.weight, dck, dck,
                           w.cross_norm_k.dweight);
  }
  cross_kv(pb, w, s).backward(pb, s.context, {{dck, dcv}}, s.dcontext, true, saved.u.cross_kv);
}

// Self-attention, then dx += LN1'(dq Wq + dk Wk + dv Wv)
void DitBlock::backward_self(ProgramBuilder& pb, BlockWeightsInUse& w, const BlockSample& s,
                             const BlockSaved& saved, const Qk& q, const Qk& k, Buffer dx,
                             Buffer dself_o, bool wants_dx,
                             const std::function<void()>& near_end) const {
  const DType act = precision_.activation;
  // Nobody reads normalised q and k or v after this: groups of heads put their gradients there.
  const bool in_place = policy_.heads_per_group > 0 && policy_.heads_per_group < config_.heads;
  const Buffer dq = in_place ? q.y : full(pb, "dq", s, act);
  const Buffer dk = in_place ? k.y : full(pb, "dk", s, act);
  const Buffer dv = in_place ? saved.v : full(pb, "dv", s, act);
  ops::attention_backward(pb,
                          {.q = heads(pb, q.y),
                           .k = heads(pb, k.y),
                           .v = heads(pb, saved.v),
                           .o = heads(pb, saved.attention),
                           .lse = saved.lse},
                          heads(pb, dself_o), heads(pb, dq), heads(pb, dk), heads(pb, dv),
                          attention_options());
  near_end();
  if (w.renew) w.renew(pb, w);
  if (w.gradients_come) w.gradients_come(pb, GradientPart::self_attention);
  for (const TokenChunk& c : token_chunks(policy_, s.tokens)) {
    const auto rows = [&](Buffer b) { return b ? pb.rows(b, c.first, c.rows) : Buffer(); };
    const auto unrotate = [&](Buffer d, Buffer raw, Buffer r, const Gain& gain) {
      ops::rms_norm_backward(pb, raw, r, gain.weight, d, d, gain.dweight, rows(s.rope));
    };
    const ops::NormTables tables = {.mul = modulation_row(pb, w.modulation, scale1),
                                    .add = modulation_row(pb, w.modulation, shift1),
                                    .index = rows(s.timestep_row),
                                    .one_plus = true};
    const ops::LayerNormOut z = normed(pb, rows(saved.x), tables, w.self_q);
    const LinearGroup qkv = self_qkv(pb, w, s, c.first);
    const Buffer u = rows(saved.u.self_qkv);
    const auto raw = [&](Buffer kept, std::size_t layer) {
      if (kept) return rows(kept);
      const Buffer again = pb.temp("raw", {c.rows, config_.dim}, act);
      qkv.forward_again(pb, z.y, layer, again, u);
      return again;
    };
    unrotate(rows(dq), raw(saved.q, 0), rows(q.r), w.self_norm_q);
    unrotate(rows(dk), raw(saved.k, 1), rows(k.r), w.self_norm_k);
    const Buffer dz = wants_dx ? pb.temp("dz1", {c.rows, config_.dim}, act) : Buffer();
    qkv.backward(pb, z.y, {{rows(dq), rows(dk), rows(dv)}}, dz, false, u);
    if (!wants_dx) continue;
    ops::layer_norm_backward(pb, rows(saved.x), z.stats, tables, dz, rows(dx), true,
                             {.dmul = modulation_row(pb, w.dmodulation, scale1),
                              .dadd = modulation_row(pb, w.dmodulation, shift1)});
  }
}

}  // namespace ballast::wan
