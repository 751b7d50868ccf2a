#include "models/wan/dit_block.h"

#include <cmath>

#include "core/error.h"
#include "ops/attention.h"
#include "ops/gated_residual.h"
#include "ops/gelu.h"
#include "ops/layer_norm.h"
#include "ops/residual_norm.h"
#include "ops/rms_norm.h"

namespace ballast::wan {
namespace {

// Rows of the modulation table.
enum Modulation : int { shift1, scale1, gate1, shift2, scale2, gate2 };

}  // namespace

Buffer DitBlock::full(ProgramBuilder& pb, const char* name, const BlockSample& s,
                      DType dtype) const {
  return pb.temp(name, {s.tokens, config_.dim}, dtype);
}

Buffer DitBlock::heads(ProgramBuilder& pb, Buffer b) const {
  return pb.reshape(b, {pb.shape(b)[0], config_.heads, config_.head_dim()});
}

Buffer DitBlock::modulation_row(ProgramBuilder& pb, Buffer m, int row) const {
  if (!m) return {};
  const Buffer r = pb.rows(m, row, 1);
  return pb.reshape(r, {pb.shape(m)[1], pb.shape(m)[2]});  // [T, C]
}

void DitBlock::tap(ProgramBuilder& pb, const char* name, const BlockSample& s, Buffer rows,
                   std::int64_t first) const {
  if (taps_) taps_->tap(pb, tap_prefix_ + name, s.index, rows, first);
}

LinearGroup DitBlock::self_qkv(ProgramBuilder& pb, const BlockWeightsInUse& w, const BlockSample& s,
                               std::int64_t first_row) const {
  return {pb,
          {w.self_q.at(first_row, s.index), w.self_k.at(first_row, s.index),
           w.self_v.at(first_row, s.index)}};
}

LinearGroup DitBlock::cross_kv(ProgramBuilder& pb, const BlockWeightsInUse& w,
                               const BlockSample& s) const {
  return {pb, {w.cross_k.at(0, s.index), w.cross_v.at(0, s.index)}};
}

Buffer DitBlock::adapter_input(ProgramBuilder& pb, std::int64_t rows,
                               std::initializer_list<const AdaptedLinear*> layers) const {
  std::int64_t rank = 0;
  for (const AdaptedLinear* l : layers) rank += l->rank(pb);
  return rank == 0 ? Buffer() : pb.temp("u", {rows, rank}, precision_.activation);
}

// z = LN(x) (1 + scale) + shift;  q, k, v = z W^T + b
void DitBlock::project_qkv(ProgramBuilder& pb, const BlockWeightsInUse& w, const BlockSample& s,
                           Buffer x, Buffer q, Buffer k, Buffer v, Buffer u) const {
  for (const TokenChunk& c : token_chunks(policy_, s.tokens)) {
    const ops::NormTables tables = {.mul = modulation_row(pb, w.modulation, scale1),
                                    .add = modulation_row(pb, w.modulation, shift1),
                                    .index = pb.rows(s.timestep_row, c.first, c.rows),
                                    .one_plus = true};
    const Buffer z = ops::layer_norm(pb, pb.rows(x, c.first, c.rows), tables, config_.eps,
                                     precision_.activation)
                         .y;  // [R, C]
    const auto rows = [&](Buffer b) { return b ? pb.rows(b, c.first, c.rows) : Buffer(); };
    self_qkv(pb, w, s, c.first).forward(pb, z, {{rows(q), rows(k), rows(v)}}, rows(u));
  }
}

void DitBlock::project_context(ProgramBuilder& pb, const BlockWeightsInUse& w, const BlockSample& s,
                               Buffer u, Buffer& cross_k, Buffer& cross_v) const {
  const Shape shape = {pb.shape(s.context)[0], config_.dim};
  cross_k = pb.temp("cross_k", shape, precision_.activation);
  cross_v = pb.temp("cross_v", shape, precision_.activation);
  cross_kv(pb, w, s).forward(pb, s.context, {{cross_k, cross_v}}, u);
}

// y = rotate(raw * r * gain)
DitBlock::Qk DitBlock::norm_and_rotate(ProgramBuilder& pb, const BlockSample& s, Buffer raw,
                                       Buffer gain, bool rotate, Buffer y) const {
  const std::int64_t rows = pb.shape(raw)[0];
  const Qk out = {y, pb.temp("r", {rows}, DType::f32)};
  for (const TokenChunk& c : token_chunks(policy_, rows)) {
    const Buffer part = pb.rows(y, c.first, c.rows);
    ops::rms_norm_into(pb, pb.rows(raw, c.first, c.rows), gain, part,
                       pb.rows(out.r, c.first, c.rows), config_.eps,
                       rotate ? pb.rows(s.rope, c.first, c.rows) : Buffer());
  }
  return out;
}

void DitBlock::attend(ProgramBuilder& pb, Buffer q, Buffer k, Buffer v, Buffer o,
                      Buffer lse) const {
  ops::attention_into(pb, heads(pb, q), heads(pb, k), heads(pb, v), heads(pb, o), lse,
                      attention_options());
}

ops::AttentionOptions DitBlock::attention_options() const {
  return {.scale = 1.0f / std::sqrt(static_cast<float>(config_.head_dim())),
          .heads_per_group = policy_.heads_per_group};
}

ops::NormTables DitBlock::norm3_tables(ProgramBuilder& pb, const BlockWeightsInUse& w) const {
  return {.mul = pb.reshape(w.norm3.weight, {1, config_.dim}),
          .add = pb.reshape(w.norm3_bias.weight, {1, config_.dim}),
          .index = {},
          .one_plus = false};
}

// x1 = x + (o Wo^T + bo) gate1;  cross_q = LN3(x1) Wq^T + bq
void DitBlock::attention_residual(ProgramBuilder& pb, const BlockWeightsInUse& w,
                                  const BlockSample& s, Buffer x, Buffer o, Buffer x1,
                                  Buffer cross_q, const BlockSaved& keep) const {
  for (const TokenChunk& c : token_chunks(policy_, s.tokens)) {
    const auto rows = [&](Buffer b) { return b ? pb.rows(b, c.first, c.rows) : Buffer(); };
    const Buffer part = rows(x1);
    const Buffer y = keep.self_out
                         ? rows(keep.self_out)
                         : pb.temp("self_out", {c.rows, config_.dim}, precision_.activation);
    w.self_o.at(c.first, s.index).forward(pb, rows(o), y, rows(keep.u.self_o));
    tap(pb, "self_attn", s, y, c.first);
    const Buffer z =
        ops::residual_norm(
            pb, rows(x), y,
            {.table = modulation_row(pb, w.modulation, gate1), .index = rows(s.timestep_row)}, part,
            norm3_tables(pb, w), config_.eps, precision_.activation)
            .y;
    w.cross_q.at(c.first, s.index).forward(pb, z, rows(cross_q), rows(keep.u.cross_q));
  }
}

// x2 = x1 + cross_o Wo^T + bo;  out = x2 + (gelu(LN2(x2) W0^T + b0) W2^T + b2) gate2
void DitBlock::feed_forward_residual(ProgramBuilder& pb, const BlockWeightsInUse& w,
                                     const BlockSample& s, Buffer x1, Buffer cross_o, Buffer out,
                                     const BlockSaved* saved) const {
  const BlockSaved keep = saved ? *saved : BlockSaved();
  for (const TokenChunk& c : token_chunks(policy_, s.tokens)) {
    const auto rows = [&](Buffer b) { return b ? pb.rows(b, c.first, c.rows) : Buffer(); };
    const auto kept_or_temp = [&](Buffer kept, const char* name, std::int64_t width) {
      return kept ? rows(kept) : pb.temp(name, {c.rows, width}, precision_.activation);
    };
    const Buffer x2 = keep.x2 ? rows(keep.x2) : rows(x1);
    const Buffer y2 = w.cross_o.at(c.first, s.index)
                          .forward(pb, rows(cross_o), precision_.activation, rows(keep.u.cross_o));
    tap(pb, "cross_attn", s, y2, c.first);
    const ops::NormTables tables = {.mul = modulation_row(pb, w.modulation, scale2),
                                    .add = modulation_row(pb, w.modulation, shift2),
                                    .index = rows(s.timestep_row),
                                    .one_plus = true};
    const Buffer z =
        ops::residual_norm(pb, rows(x1), y2, {}, x2, tables, config_.eps, precision_.activation).y;
    const Buffer pre = kept_or_temp(keep.pre, "pre", config_.ffn_dim);  // [R, F]
    const Buffer act =
        keep.pre ? pb.temp("act", pb.shape(pre), precision_.activation) : pre;  // [R, F]
    if (saved) {  // what backward computes again starts from pre as it was rounded
      w.up.at(c.first, s.index).forward(pb, z, pre, rows(keep.u.up));
      ops::gelu_into(pb, pre, act);
    } else {
      w.up.at(c.first, s.index).forward_gelu(pb, z, act);
    }
    const Buffer y3 = kept_or_temp(keep.ffn_out, "ffn_out", config_.dim);
    w.down.at(c.first, s.index).forward(pb, act, y3, rows(keep.u.down));
    tap(pb, "ffn", s, y3, c.first);
    ops::gated_residual(
        pb, x2, y3,
        {.table = modulation_row(pb, w.modulation, gate2), .index = rows(s.timestep_row)},
        rows(out));
  }
}

Buffer DitBlock::forward(ProgramBuilder& pb, const BlockWeightsInUse& w, const BlockSample& s,
                         Buffer x, Activations keep, BlockSaved* saved) const {
  const bool keeps_all = saved && keep == Activations::kept;
  const bool keeps_attention = saved && keep != Activations::recomputed;
  const DType act = precision_.activation;

  const Buffer q = full(pb, "q", s, act), k = full(pb, "k", s, act), v = full(pb, "v", s, act);
  AdapterInputs u;
  if (keeps_all) {
    u.self_qkv = adapter_input(pb, s.tokens, {&w.self_q, &w.self_k, &w.self_v});
    u.self_o = adapter_input(pb, s.tokens, {&w.self_o});
    u.cross_q = adapter_input(pb, s.tokens, {&w.cross_q});
    u.cross_kv = adapter_input(pb, pb.shape(s.context)[0], {&w.cross_k, &w.cross_v});
    u.cross_o = adapter_input(pb, s.tokens, {&w.cross_o});
    u.up = adapter_input(pb, s.tokens, {&w.up});
    u.down = adapter_input(pb, s.tokens, {&w.down});
  }
  project_qkv(pb, w, s, x, q, k, v, u.self_qkv);
  const auto in_place_or = [&](Buffer raw, const char* name) {
    return keeps_all ? pb.temp(name, pb.shape(raw), act) : raw;
  };
  const Qk qn = norm_and_rotate(pb, s, q, w.self_norm_q.weight, true, in_place_or(q, "q_rotated"));
  const Qk kn = norm_and_rotate(pb, s, k, w.self_norm_k.weight, true, in_place_or(k, "k_rotated"));
  const Buffer o = full(pb, "attention", s, act);
  const Buffer lse = pb.temp("lse", {config_.heads, s.tokens}, DType::f32);
  attend(pb, qn.y, kn.y, v, o, lse);
  tap(pb, "sa_q_rope", s, qn.y, 0);
  tap(pb, "sa_k_rope", s, kn.y, 0);
  tap(pb, "sa_v", s, v, 0);
  tap(pb, "sa_out", s, o, 0);

  BlockSaved kept;
  kept.x = x;
  kept.u = u;
  if (keeps_attention) kept.attention = o, kept.lse = lse;
  if (keeps_all) {
    kept.q = q, kept.k = k, kept.v = v;
    kept.x2 = full(pb, "x2", s, precision_.residual);
    kept.pre = pb.temp("pre", {s.tokens, config_.ffn_dim}, act);
    if (gates_train(w)) {
      kept.self_out = full(pb, "self_out", s, act);
      kept.ffn_out = full(pb, "ffn_out", s, act);
    }
  }

  const Buffer x1 = saved ? full(pb, "x1", s, precision_.residual) : x;
  const Buffer cross_q = full(pb, "cross_q", s, act);
  attention_residual(pb, w, s, x, o, x1, cross_q, kept);
  Buffer cross_k, cross_v;
  project_context(pb, w, s, u.cross_kv, cross_k, cross_v);
  const Qk cqn = norm_and_rotate(pb, s, cross_q, w.cross_norm_q.weight, false,
                                 in_place_or(cross_q, "cross_q_normed"));
  const Qk ckn = norm_and_rotate(pb, s, cross_k, w.cross_norm_k.weight, false,
                                 in_place_or(cross_k, "cross_k_normed"));
  const Buffer cross_o = full(pb, "cross_attention", s, act);
  const Buffer cross_lse = pb.temp("cross_lse", {config_.heads, s.tokens}, DType::f32);
  attend(pb, cqn.y, ckn.y, cross_v, cross_o, cross_lse);
  tap(pb, "ca_q", s, cqn.y, 0);
  tap(pb, "ca_k", s, ckn.y, 0);
  tap(pb, "ca_v", s, cross_v, 0);
  tap(pb, "ca_out", s, cross_o, 0);
  if (keeps_all) {
    kept.x1 = x1;
    kept.cross_q = cross_q, kept.cross_k = cross_k, kept.cross_v = cross_v;
    kept.cross_attention = cross_o, kept.cross_lse = cross_lse;
  }
  const Buffer out = keeps_all ? full(pb, "x", s, precision_.residual) : x1;
  feed_forward_residual(pb, w, s, x1, cross_o, out, saved ? &kept : nullptr);
  if (saved) *saved = kept;
  return out;
}

// ---------------------------------------------------------------- backward

// Self-attention's operands, kept or computed again. In halves the raw q and k give their places to
// the normalised ones: backward computes them once more, chunk by chunk.
void DitBlock::restore_self(ProgramBuilder& pb, const BlockWeightsInUse& w, const BlockSample& s,
                            BlockSaved& r, Qk& q, Qk& k) const {
  const DType act = precision_.activation;
  const bool in_place = policy_.halves && !r.q;
  if (!r.q) {
    r.q = full(pb, "q", s, act), r.k = full(pb, "k", s, act), r.v = full(pb, "v", s, act);
    r.u.self_qkv = adapter_input(pb, s.tokens, {&w.self_q, &w.self_k, &w.self_v});
    project_qkv(pb, w, s, r.x, r.q, r.k, r.v, r.u.self_qkv);
  }
  const auto normed = [&](Buffer raw, Buffer gain) {
    return norm_and_rotate(pb, s, raw, gain, true,
                           in_place ? raw : pb.temp("normed", pb.shape(raw), act));
  };
  q = normed(r.q, w.self_norm_q.weight);
  k = normed(r.k, w.self_norm_k.weight);
  if (in_place) r.q = r.k = {};
}

// Everything backward reads, kept or computed again, except what is local to a chunk. In halves
// self-attention's operands are left to its own backward pass.
BlockSaved DitBlock::restore(ProgramBuilder& pb, const BlockWeightsInUse& w, const BlockSample& s,
                             const BlockSaved& saved, Qk& q, Qk& k, Qk& cq, Qk& ck) const {
  const DType act = precision_.activation;
  const auto normed = [&](Buffer raw, Buffer gain) {
    return norm_and_rotate(pb, s, raw, gain, false, pb.temp("normed", pb.shape(raw), act));
  };
  BlockSaved r = saved;
  if (!policy_.halves || !r.attention) restore_self(pb, w, s, r, q, k);
  if (!r.attention) {
    r.attention = full(pb, "attention", s, act);
    r.lse = pb.temp("lse", {config_.heads, s.tokens}, DType::f32);
    attend(pb, q.y, k.y, r.v, r.attention, r.lse);
  }
  if (policy_.halves) r.q = saved.q, r.k = saved.k, r.v = saved.v;
  if (!r.x1) {
    r.x1 = full(pb, "x1", s, precision_.residual);
    r.cross_q = full(pb, "cross_q", s, act);
    r.u.self_o = adapter_input(pb, s.tokens, {&w.self_o});
    r.u.cross_q = adapter_input(pb, s.tokens, {&w.cross_q});
    r.u.cross_kv = adapter_input(pb, pb.shape(s.context)[0], {&w.cross_k, &w.cross_v});
    attention_residual(pb, w, s, r.x, r.attention, r.x1, r.cross_q, r);
    project_context(pb, w, s, r.u.cross_kv, r.cross_k, r.cross_v);
  }
  cq = normed(r.cross_q, w.cross_norm_q.weight);
  ck = normed(r.cross_k, w.cross_norm_k.weight);
  if (!r.cross_attention) {
    r.cross_attention = full(pb, "cross_attention", s, act);
    r.cross_lse = pb.temp("cross_lse", {config_.heads, s.tokens}, DType::f32);
    attend(pb, cq.y, ck.y, r.cross_v, r.cross_attention, r.cross_lse);
  }
  return r;
}

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
  if (policy_.halves) restore_self(pb, w, s, all, q, k);
  backward_self(pb, w, s, all, q, k, dx, dself_o, wants_dx, near_end);
}

// dy3 = dx gate2;  dpre = gelu'(pre) (dy3 W2);  dx += LN2'(dpre W0);  dcross_o = dx Wo
void DitBlock::backward_feed_forward(ProgramBuilder& pb, const BlockWeightsInUse& w,
                                     const BlockSample& s, const BlockSaved& saved, Buffer dx,
                                     Buffer dcross_o) const {
  const DType act = precision_.activation;
  for (const TokenChunk& c : token_chunks(policy_, s.tokens)) {
    const auto rows = [&](Buffer b) { return b ? pb.rows(b, c.first, c.rows) : Buffer(); };
    const auto temp = [&](const char* name, std::int64_t width) {
      return pb.temp(name, {c.rows, width}, act);
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
      u_cross_o = adapter_input(pb, c.rows, {&w.cross_o});
      x2 = pb.temp("x2", {c.rows, config_.dim}, precision_.residual);
      const Buffer y2 =
          w.cross_o.at(c.first, s.index).forward(pb, rows(saved.cross_attention), act, u_cross_o);
      z = ops::residual_norm(pb, rows(saved.x1), y2, {}, x2, tables, config_.eps, act);
    }
    Buffer pre = rows(saved.pre);  // [R, F]
    if (!pre) {
      u_up = adapter_input(pb, c.rows, {&w.up});
      pre = w.up.at(c.first, s.index).forward(pb, z.y, act, u_up);
    }

    Buffer activated, y3;  // only where a gradient reads them
    if (w.down.trains() || (gates_train(w) && !saved.ffn_out)) {
      activated = temp("act", config_.ffn_dim);
      ops::gelu_into(pb, pre, activated);
    }
    if (gates_train(w)) {
      y3 = saved.ffn_out ? rows(saved.ffn_out)
                         : w.down.at(c.first, s.index).forward(pb, activated, act);
    }
    const Buffer dy3 = temp("dy3", config_.dim);
    ops::gated_residual_backward(pb, dx_rows,
                                 {.table = modulation_row(pb, w.modulation, gate2), .index = index},
                                 dy3, y3, modulation_row(pb, w.dmodulation, gate2));
    const Buffer dpre = temp("dpre", config_.ffn_dim);  // [R, F]
    w.down.at(c.first, s.index).backward(pb, activated, dy3, dpre, false, rows(saved.u.down));
    ops::gelu_backward_into(pb, pre, dpre, dpre);
    const Buffer dz = temp("dz2", config_.dim);
    w.up.at(c.first, s.index).backward(pb, z.y, dpre, dz, false, u_up);
    ops::layer_norm_backward(pb, x2, z.stats, tables, dz, dx_rows, true,
                             {.dmul = modulation_row(pb, w.dmodulation, scale2),
                              .dadd = modulation_row(pb, w.dmodulation, shift2)});

    Buffer dy2 = dx_rows;
    if (precision_.residual != act) {
      dy2 = temp("dy2", config_.dim);
      ops::gated_residual_backward(pb, dx_rows, {}, dy2, {}, {});
    }
    w.cross_o.at(c.first, s.index)
        .backward(pb, rows(saved.cross_attention), dy2, rows(dcross_o), false, u_cross_o);
  }
}

// Cross-attention, then dx += LN3'(dcq Wq) and dself_o = (dx gate1) Wo
void DitBlock::backward_cross(ProgramBuilder& pb, const BlockWeightsInUse& w, const BlockSample& s,
                              const BlockSaved& saved, const Qk& cq, const Qk& ck, Buffer dx,
                              Buffer dcross_o, Buffer dself_o) const {
  const DType act = precision_.activation;
  const Buffer dcq = full(pb, "dcross_q", s, act);
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
    const Buffer dy1 = pb.temp("dy1", {c.rows, config_.dim}, act);
    ops::gated_residual_backward(
        pb, dx_rows,
        {.table = modulation_row(pb, w.modulation, gate1), .index = rows(s.timestep_row)}, dy1, y1,
        modulation_row(pb, w.dmodulation, gate1));
    w.self_o.at(c.first, s.index)
        .backward(pb, rows(saved.attention), dy1, rows(dself_o), false, rows(saved.u.self_o));
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
  const Buffer dq = full(pb, "dq", s, act), dk = full(pb, "dk", s, act),
               dv = full(pb, "dv", s, act);
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
  for (const TokenChunk& c : token_chunks(policy_, s.tokens)) {
    const auto rows = [&](Buffer b) { return b ? pb.rows(b, c.first, c.rows) : Buffer(); };
    const auto unrotate = [&](Buffer d, Buffer raw, Buffer r, const Gain& gain) {
      ops::rms_norm_backward(pb, raw, r, gain.weight, d, d, gain.dweight, rows(s.rope));
    };
    const ops::NormTables tables = {.mul = modulation_row(pb, w.modulation, scale1),
                                    .add = modulation_row(pb, w.modulation, shift1),
                                    .index = rows(s.timestep_row),
                                    .one_plus = true};
    const ops::LayerNormOut z = ops::layer_norm(pb, rows(saved.x), tables, config_.eps, act);
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
